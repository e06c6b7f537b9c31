"""`validator.numerics` is usable by itself."""

import ast
import doctest
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from validator import numerics

MODULES = sorted(path for path in Path(numerics.__file__).parent.glob("*.py") if path.stem != "__init__")
by_stem = pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)


def test_every_public_name_is_there_and_is_public_where_it_is_defined() -> None:
    for name in numerics.__all__:
        home = import_module(f"validator.numerics.{numerics._MODULE_OF[name]}")
        assert getattr(numerics, name) is getattr(home, name)
        assert name in home.__all__
    assert set(numerics.__all__) == set(numerics._MODULE_OF) <= set(dir(numerics))
    with pytest.raises(AttributeError, match="no attribute 'ulp_distance'"):
        _ = numerics.ulp_distance


def test_no_public_name_is_hidden_by_a_module_of_the_same_name() -> None:
    assert not set(numerics.__all__) & {path.stem for path in MODULES}


@by_stem
def test_nothing_is_imported_from_the_rest_of_the_package_but_errors(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            if name.partition(".")[0] == "validator":
                assert name == "validator.errors" or name.startswith("validator.numerics."), name


@by_stem
def test_public_functions_and_classes_say_what_they_are(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    public = import_module(f"validator.numerics.{path.stem}").__all__
    assert ast.get_docstring(tree)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in public:
            assert ast.get_docstring(node), node.name


def test_the_usage_in_the_docstring_prints_what_it_says() -> None:
    result = doctest.testmod(numerics)
    assert result.attempted > 5
    assert result.failed == 0


def test_importing_it_loads_no_torch() -> None:
    program = "import sys, validator.numerics; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"

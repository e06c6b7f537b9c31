"""A target is found, loaded, built and run, or one message says why not."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from tests.ranks import RankPool
from validator.errors import CaptureError, TargetError, UsageError
from validator.numerics.recipes import EAGER, FUSED, RECIPES, Recipe
from validator.target import Target, inputs_checksum, load_target

PORT = """
import torch
from torch import nn

def reference():
    return nn.Linear(3, 2)

def candidate(dtype=torch.float32, device="cpu"):
    return nn.Linear(3, 2).to(dtype).to(device)

def inputs():
    return {"input": torch.randn(4, 3)}
"""
REFERENCE, CANDIDATE, INPUTS = (
    "import torch\ndef reference():\n    return torch.nn.Linear(3, 2)\n",
    "def candidate():\n    return torch.nn.Linear(3, 2)\n",
    "def inputs():\n    return {'input': torch.ones(4, 3)}\n",
)

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "port.py"
        path.write_text(text)
        return path

    return write


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    folder = tmp_path_factory.mktemp("checkpoint")
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=20,
    )
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def refused(path: Path, **options: Any) -> str:
    with pytest.raises(TargetError) as error:
        load_target(path, **options)
    return str(error.value)


def test_a_python_file_gives_models_inputs_and_outputs(write: Write) -> None:
    path = write(PORT)
    target = load_target(path)
    assert target.source == str(path)
    model, inputs = target.reference(), target.inputs()
    assert isinstance(model, nn.Linear)
    assert not model.training
    assert torch.equal(target.run(model, inputs), model(inputs["input"]))
    assert (target.recipe, target.layout, target.names) == (None, {}, {})


def test_what_is_drawn_at_random_does_not_depend_on_what_ran_before(write: Write) -> None:
    path = write(PORT + "\ndef run(model, inputs):\n    return torch.rand(3)\n")
    target = load_target(path)
    first = target.inputs()["input"]
    model = target.candidate()
    assert torch.equal(target.run(model, {}), target.run(model, {}))
    assert torch.equal(load_target(path).inputs()["input"], first)
    assert torch.equal(load_target(path).reference().weight, model.weight)


def test_a_file_that_changed_is_read_again_under_a_name_that_only_its_path_decides(write: Write) -> None:
    first = load_target(write(PORT)).reference
    second = load_target(write(PORT.replace("nn.Linear(3, 2)\n\ndef c", "nn.Identity()\n\ndef c")))
    assert isinstance(first(), nn.Linear)
    assert isinstance(second.reference(), nn.Identity)
    names = {target.functions["reference"].__module__ for target in (second, load_target(second.source))}
    assert len(names) == 1
    assert names <= sys.modules.keys()


def test_modules_beside_a_target_can_be_imported_while_its_code_runs_and_not_after(
    write: Write, tmp_path: Path
) -> None:
    (tmp_path / "beside_at_load.py").write_text("size = 5\n")
    (tmp_path / "beside_at_call.py").write_text("size = 6\n")
    target = load_target(
        write(
            "import torch, beside_at_load\n"
            "def reference():\n    import beside_at_call\n"
            "    return torch.nn.Linear(beside_at_load.size, beside_at_call.size)\n" + INPUTS
        )
    )
    assert target.reference().weight.shape == (6, 5)
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize(
    ("line", "recipe"),
    [
        ("recipe = 'fused'", FUSED),
        ("recipe = 'eager'", EAGER),
        (
            "import validator; recipe = validator.Recipe(name='mine', inner='bfloat16')",
            Recipe(name="mine", inner="bfloat16"),
        ),
    ],
    ids=["fused", "eager", "own"],
)
def test_a_recipe_is_named_or_made(write: Write, line: str, recipe: Recipe) -> None:
    assert load_target(write(PORT + line)).recipe == recipe


def test_layout_mesh_and_names_are_taken_as_they_are(write: Write) -> None:
    lines = "layout = {'a.*': 'b'}\nnames = {'c': 'd'}\nmesh = {'dp': 2, 'tp': 4}\n"
    target = load_target(write(PORT + lines))
    assert (target.layout, target.names) == ({"a.*": "b"}, {"c": "d"})
    assert target.mesh == {"dp": 2, "tp": 4}


def test_options_reach_the_candidate_alone(write: Write) -> None:
    target = load_target(write(PORT), dtype="bfloat16", device="meta")
    weight = target.candidate().weight
    assert (weight.dtype, weight.device.type) == (torch.bfloat16, "meta")
    assert target.reference().weight.dtype == torch.float32


class Traveller(torch.Tensor):
    """A tensor that remembers where it was sent."""

    sent_to: ClassVar[list[Any]] = []

    def to(self, device: torch.device) -> torch.Tensor:  # type: ignore[override]
        self.sent_to.append(device)
        return torch.ones(4, 3)


def test_inputs_follow_the_model_to_its_device(write: Write) -> None:
    model = nn.Linear(3, 2)
    load_target(write(PORT)).run(model, {"input": torch.zeros(4, 3).as_subclass(Traveller)})
    assert Traveller.sent_to == [model.weight.device]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "bfloat17"}, "--dtype 'bfloat17' is no floating format of torch; try bfloat16"),
        ({"dtype": "int8"}, "--dtype 'int8' is no floating format of torch; try bfloat16"),
        (
            {"dtype": "float16"},
            "--dtype float16 can't be passed on: candidate() of {} takes no argument 'dtype'.",
        ),
        (
            {"device": "cuda"},
            "--device cuda can't be passed on: candidate() of {} takes no argument 'device'.",
        ),
        ({"tp": 2}, "--tp 2 can't be passed on: candidate() of {} takes no argument 'tp'."),
    ],
    ids=["unknown dtype", "integer dtype", "dtype", "device", "tp"],
)
def test_an_option_that_would_have_no_effect_is_refused(write: Write, options: Any, message: str) -> None:
    path = write(REFERENCE + CANDIDATE + INPUTS)
    with pytest.raises(UsageError) as error:
        load_target(path, **options)
    assert str(error.value).startswith(message.format(path))


def test_a_path_that_is_no_target_says_what_it_is(tmp_path: Path) -> None:
    assert refused(tmp_path / "port.py").startswith(f"no such target: '{tmp_path / 'port.py'}'")
    assert refused(tmp_path).endswith(
        "is a folder but no checkpoint: it has no config.json and no *.safetensors"
    )
    (tmp_path / "config.json").touch()
    assert refused(tmp_path).endswith("is a folder but no checkpoint: it has no *.safetensors")
    (tmp_path / "port.txt").touch()
    assert "port.txt' is no target: give a Python file (.py)" in refused(tmp_path / "port.txt")


@pytest.mark.parametrize(
    ("text", "cause", "message"),
    [
        (
            "x = 1\ndef broken(:\n",
            SyntaxError,
            r"port\.py can't be loaded: SyntaxError: invalid syntax \(port\.py:2\)",
        ),
        (
            "def f():\n    return {}['key']\nf()\n",
            KeyError,
            r"port\.py can't be loaded: KeyError: 'key' \(\S*port\.py:2 in f\)",
        ),
        (
            "import sys\nsys.exit(1)\n",
            SystemExit,
            r"port\.py can't be loaded: SystemExit: 1 \(\S*port\.py:2 in <module>\)",
        ),
        (
            "import absent_module\n",
            ModuleNotFoundError,
            r"port\.py can't be loaded: ModuleNotFoundError: .*'absent_module' \(\S*port\.py:1 in <module>\)",
        ),
    ],
    ids=["syntax", "exception", "exit", "import"],
)
def test_a_file_that_fails_when_loaded_gives_its_error_and_line(
    write: Write, text: str, cause: type[BaseException], message: str
) -> None:
    modules = set(sys.modules)
    with pytest.raises(TargetError) as error:
        load_target(write(text))
    assert re.fullmatch(message, str(error.value))
    assert type(error.value.__cause__) is cause
    assert not [name for name in sys.modules.keys() - modules if name.startswith("validator_target")]


def test_missing_functions_are_named_beside_those_that_are_there(write: Write) -> None:
    path = write(CANDIDATE + "def refrence(): ...\n")
    assert refused(path) == (
        f"{path} has no reference, inputs; it has candidate, refrence. A target defines the functions "
        "reference, candidate and inputs: add `def reference(): ...`"
    )


def test_a_candidate_is_needed_only_when_it_is_asked_for(write: Write) -> None:
    target = load_target(write(REFERENCE + INPUTS), dtype="bfloat16")
    with pytest.raises(TargetError, match=r"port\.py has no candidate; it has reference, inputs, torch\."):
        target.require("candidate")
    with pytest.raises(TargetError, match=r"port\.py has no candidate;"):
        target.candidate()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "recipe = 'fast'",
            f"recipe in {{}} is 'fast'; it must be {', '.join(map(repr, RECIPES))} or a validator.Recipe",
        ),
        ("layout = ['a']", "layout in {} is ['a']; it must be a dict from module patterns to strings"),
        ("names = {'a': 1}", "names in {} is {{'a': 1}}; it must be a dict from module patterns to strings"),
        ("mesh = {'tp': 0}", 'mesh in {} is {{\'tp\': 0}}; it must be a dict such as {{"dp": 2, "tp": 2}}'),
        ("inputs = {'x': 1}", "inputs in {} is a dict, not a function; write `def inputs(...)`"),
    ],
    ids=["recipe", "layout", "names", "mesh", "inputs"],
)
def test_an_attribute_of_the_wrong_kind_is_shown(write: Write, line: str, message: str) -> None:
    path = write(f"{PORT}\n{line}\n")
    assert refused(path) == message.format(path)


@pytest.mark.parametrize(
    ("text", "call", "message"),
    [
        (
            "def reference():\n    raise ValueError('planted')\n",
            Target.reference,
            r"reference\(\) of {} failed: ValueError: planted \(\S*port\.py:\d+ in reference\)",
        ),
        (
            "def reference():\n    return {}\n",
            Target.reference,
            r"reference\(\) of {} returned a dict; it must return a torch\.nn\.Module",
        ),
        (
            "def candidate():\n    pass\n",
            Target.candidate,
            r"candidate\(\) of {} returned None; it must return a torch\.nn\.Module",
        ),
        (
            "def inputs():\n    return torch.ones(1)\n",
            Target.inputs,
            r"inputs\(\) of {} returned a Tensor; it must return a dict of the model's keyword arguments.*",
        ),
        (
            "def inputs():\n    return {0: torch.ones(1)}\n",
            Target.inputs,
            r"inputs\(\) of {} returned a dict with the key 0; its keys must be names of the model.*",
        ),
    ],
    ids=[
        "reference raises",
        "reference is no module",
        "candidate is none",
        "inputs are no dict",
        "keys are no names",
    ],
)
def test_a_function_that_fails_or_returns_something_else_is_named(
    write: Write, text: str, call: Callable[[Target], object], message: str
) -> None:
    path = write(PORT + text)
    with pytest.raises(TargetError) as error:
        call(load_target(path))
    assert re.fullmatch(message.replace("{}", re.escape(str(path))), str(error.value))


def test_a_model_that_fails_on_the_inputs_is_placed_in_the_user_s_code_with_the_inputs_shapes(
    write: Write,
) -> None:
    path = write(
        "import torch\n"
        "class Model(torch.nn.Module):\n"
        "    def forward(self, input):\n"
        "        return input @ torch.ones(5, 5)\n"
        "def reference():\n    return Model()\n" + INPUTS
    )
    target = load_target(path)
    with pytest.raises(TargetError) as error:
        target.run(target.reference(), target.inputs())
    assert re.fullmatch(
        r"the reference fails on inputs\(\): RuntimeError: mat1 and mat2 .* \(\S*port\.py:4 in forward\)\. "
        rf"inputs\(\) of {re.escape(str(path))} gave input \[4, 3\] float32",
        str(error.value),
    )
    assert isinstance(error.value.__cause__, RuntimeError)
    with pytest.raises(TargetError, match=r"^the candidate fails on inputs\(\): "):
        target.run(target.reference(), target.inputs(), side="candidate")


def test_an_error_of_ours_passes_through_a_run_unchanged(write: Write) -> None:
    path = write(
        PORT + "from validator.errors import CaptureError\n"
        "def run(model, inputs):\n    raise CaptureError('disk full')\n"
    )
    target = load_target(path)
    with pytest.raises(CaptureError, match=r"^disk full$"):
        target.run(target.reference(), target.inputs())


def test_the_checksum_of_inputs_changes_with_every_part_of_them() -> None:
    def made(**changes: Any) -> str:
        return inputs_checksum({"a": torch.arange(4), "b": [torch.tensor(1.5), None, "text"]} | changes)

    same = made()
    assert same == made()
    changed = [
        made(a=torch.arange(4).reshape(2, 2)),
        made(a=torch.arange(4).int()),
        made(a=torch.tensor([0, 1, 2, 4])),
        made(b=[torch.tensor(1.5), None, "other"]),
        made(b=[torch.tensor(1.5), 0, "text"]),
        made(c=None),
    ]
    assert len({same, *changed}) == 7
    assert made(a=torch.arange(8)[::2]) == made(a=torch.tensor([0, 2, 4, 6]))


def test_a_checkpoint_is_its_own_reference_and_its_inputs_fit_its_vocabulary_and_positions(
    checkpoint: Path,
) -> None:
    target = load_target(checkpoint, dtype="float32")
    reference, candidate, inputs = target.reference(), target.candidate(), target.inputs()
    assert type(reference).__name__ == "LlamaForCausalLM"
    assert (reference.dtype, candidate.dtype) == (torch.bfloat16, torch.float32)
    assert {name: tuple(value.shape) for name, value in inputs.items()} == {
        "input_ids": (2, 20),
        "attention_mask": (2, 20),
    }
    assert inputs["input_ids"].max() < 32
    assert inputs_checksum(inputs) == inputs_checksum(load_target(checkpoint).inputs())
    assert target.run(reference, inputs).logits.shape == (2, 20, 32)


def test_a_broken_checkpoint_gives_the_loader_s_error(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes((checkpoint / "model.safetensors").read_bytes()[:100])
    with pytest.raises(
        TargetError, match=f"^reference\\(\\) of {re.escape(str(tmp_path))} failed: SafetensorError: "
    ):
        load_target(tmp_path).reference()


def test_a_checkpoint_without_transformers_names_the_extra(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError, match=r"pip install 'accuracy-validator\[hf\]'"):
        load_target(checkpoint).reference()


def test_tensor_parallelism_on_other_than_all_ranks_is_refused_with_both_numbers(checkpoint: Path) -> None:
    with pytest.raises(UsageError, match="--tp 2 must equal --nproc 1"):
        load_target(checkpoint, tp=2).candidate()


def test_a_checkpoint_s_candidate_is_sharded_over_the_ranks_and_computes_the_same(
    checkpoint: Path, rank_pool: Callable[[int], RankPool]
) -> None:
    target = load_target(checkpoint, dtype="float32")
    logits = target.run(target.candidate(), target.inputs()).logits
    for rows, cand_logits in rank_pool(2).run(sharded_logits, str(checkpoint)):
        assert rows == 8
        torch.testing.assert_close(cand_logits, logits)


def sharded_logits(rank: int, world_size: int, checkpoint: str) -> tuple[int, torch.Tensor]:
    assert dist.get_world_size() == world_size
    target = load_target(checkpoint, dtype="float32", tp=world_size)
    model = target.candidate()
    weight = model.get_parameter("model.layers.0.self_attn.q_proj.weight")
    with torch.no_grad():
        logits = target.run(model, target.inputs()).logits
    return len(weight.to_local() if isinstance(weight, DTensor) else weight), logits

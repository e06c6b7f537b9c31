"""A fault is found by its name and read from a command line, and a mistake shows what would be legal."""

from fnmatch import fnmatchcase

import pytest

from tests.planted import FAULTS, Expectation
from validator.errors import UsageError
from validator.faults import get, parse, registry


def test_parameters_that_are_left_out_have_their_defaults() -> None:
    planned = parse("attn-scale:layer=3")
    assert planned.parameters == {"layer": 3, "factor": 1.01, "rank": None}
    assert str(planned) == "attn-scale:layer=3,factor=1.01"
    assert planned.module == "*layers.3.self_attn"
    assert planned.rank is None


def test_a_fault_without_parameters_is_its_name() -> None:
    assert str(parse("head-is-embedding")) == "head-is-embedding"


@pytest.mark.parametrize("name", registry())
def test_what_a_planned_fault_is_written_as_reads_back_as_itself(name: str) -> None:
    planned = get(name).plan()
    assert parse(str(planned)) == planned


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "attn_scale",
            "no fault is called 'attn_scale'; did you mean 'attn-scale'? `validator faults` lists",
        ),
        ("attn-scale:depth=3", "'attn-scale' has no parameter 'depth'; it takes layer, factor, rank"),
        ("head-is-embedding:layer=3", "'head-is-embedding' has no parameter 'layer'; it takes none"),
        (
            "attn-scale:3",
            "'3' in 'attn-scale:3' is no parameter=value; write for instance attn-scale:layer=1",
        ),
        ("attn-scale:", "'' in 'attn-scale:' is no parameter=value"),
        ("attn-scale:layer=3,layer=4", "'layer=4' in 'attn-scale:layer=3,layer=4' is given twice"),
        ("attn-scale:layer=-1", "layer='-1' of the fault 'attn-scale' is not the index of a decoder layer"),
        ("attn-scale:layer=1.5", "layer='1.5' of the fault"),
        ("attn-scale:factor=nan", "factor='nan' of the fault 'attn-scale' is not what to multiply by"),
        ("attn-scale:factor=big", "factor='big' of the fault"),
    ],
)
def test_a_mistake_shows_the_text_and_what_is_legal(text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text)
    assert message in str(raised.value)


@pytest.mark.parametrize("value", [1.5, -1, None, "x"])
def test_an_index_that_is_none_is_refused_from_python_too(value: object) -> None:
    with pytest.raises(UsageError, match=r"write 0, 1, 2, \.\.\."):
        get("attn-scale").plan(layer=value)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.fault)
def test_the_record_names_the_module_that_the_trials_expect(fault: Expectation) -> None:
    layer = fault.layers[0]
    assert fnmatchcase(fault.guilty[0].module.format(layer=layer), fault.planned(layer).module)


def test_every_fault_is_tried() -> None:
    assert {parse(fault.fault).fault.name for fault in FAULTS} == set(registry())

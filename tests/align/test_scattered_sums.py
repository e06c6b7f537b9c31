"""What enters a sum that is scattered over ranks."""

from dataclasses import replace

import pytest
import torch

from tests.align.build import Recorder, tensor_ref
from validator.align.scattered_sums import whole_terms
from validator.capturing.records import Collective

TERM = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
CHUNKS = TERM.chunk(2, dim=1)


def entered(*tensors: torch.Tensor, op: str = "reduce_scatter") -> torch.Tensor:
    """Return what entered a sum after a module had returned TERM."""
    recorder = Recorder()
    with recorder.call("", {}):
        recorder.leaf("o_proj", TERM, TERM)
        recorder.reduce(tensors[0], tensors[0], (0, 1))
    capture = recorder.capture()
    ended = tuple(replace(call, end=call.start + 1) if call.module else call for call in capture.calls)
    (sum_,) = (
        replace(c, op=op, start=c.start + 1, entered=tuple(map(tensor_ref, tensors)))
        for c in capture.collectives
    )
    (found,) = whole_terms([replace(capture, calls=ended, collectives=(sum_,))])
    collective: Collective = found.collectives[0]
    (only,) = collective.entered
    return only.read()


@pytest.mark.parametrize(
    "laid_out",
    [(torch.cat(CHUNKS),), tuple(CHUNKS), (torch.cat(CHUNKS[::-1]),)],
    ids=["one after the other", "a list", "in the wrong order"],
)
def test_parts_of_what_a_module_returned_are_that(laid_out: tuple[torch.Tensor, ...]) -> None:
    assert torch.equal(entered(*laid_out), TERM)


def test_parts_of_something_else_enter_one_after_the_other() -> None:
    other = [2 * chunk for chunk in CHUNKS]
    assert torch.equal(entered(*other), torch.cat(other))


def test_a_number_for_each_rank_enters_as_a_list_of_them() -> None:
    assert torch.equal(entered(torch.tensor(1.0), torch.tensor(2.0)), torch.tensor([1.0, 2.0]))


def test_sums_that_are_not_scattered_stay() -> None:
    laid_out = torch.cat(CHUNKS)
    assert torch.equal(entered(laid_out, op="all_reduce"), laid_out)

"""What the steps of a search come to: the order of their edges, and the edge before the guilty one."""

from pathlib import Path

import pytest

from tests.bisecting.deep_port import write_deep_net
from validator.bisecting.merging import Timeline, merged
from validator.bisecting.survey import Survey
from validator.checks.findings import Arm, Check, Evidence, Judgement, Outcome, Verdict
from validator.target_bisect import bisect_target

ROW_PARALLEL = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def candidate():
    model = Net().to(torch.bfloat16)
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),), mesh_dim_names=("tp",))
    for layer in model.layers:
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if torch.distributed.get_rank() == 1:
        down = model.layers[2].down
        right = down.forward
        down.forward = lambda x: 1.05 * right(x)
    return model
"""
SURVEY = Survey(
    modules={},
    starts={("", 0): 1, ("up", 0): 2, ("down", 0): 4},
    ends={("", 0): 6, ("up", 0): 3, ("down", 0): 5},
    blocks=(),
    frame=(),
    elements=0,
)


def judgement(check: Check, order: int, module: str = "down", **more: object) -> Judgement:
    return Judgement(
        module=module,
        candidate_module=module,
        check=check,
        verdict=Verdict.ALIGNED,
        order=order,
        evidence=Evidence(),
        **more,  # type: ignore[arg-type]
    )


ROWS = (
    judgement(Check.PARAMETER, -1),
    judgement(Check.INPUT, 3, module="", path="x"),
    judgement(Check.FUNCTION, 6, module="up"),
    judgement(Check.REPLICA, 7, module="up"),
    judgement(Check.WIRING, 9, module="", into="down", path="input"),
    judgement(Check.PARTIAL, 11, rank=0),
    judgement(Check.PARTIAL, 11, rank=1),
    judgement(Check.FUNCTION, 12),
    judgement(Check.REPLICA, 13),
    judgement(Check.WIRING, 15, module=""),
    judgement(Check.REPLICA, 16, module=""),
)


def before(guilty: int) -> int | None:
    """Return which of `ROWS` is told to be the edge before a guilty one."""
    found = ROWS[guilty].found(summary="", verdict=Verdict.DIVERGENT, arm=Arm.MAX)
    outcome = Outcome(verdict=Verdict.DIVERGENT, findings=(found,), judgements=ROWS)
    _, claim = merged([outcome], Timeline(survey=SURVEY, places={}), notes=(), why=())
    assert claim is not None
    edge = claim.before
    if edge is None:
        return None
    key = (edge.check, edge.module, edge.into, edge.rank)
    return next(n for n, row in enumerate(ROWS) if (row.check, row.module, row.into, row.rank) == key)


@pytest.mark.parametrize(
    ("guilty", "edge"),
    [(1, None), (2, 1), (3, 2), (4, 3), (5, 4), (6, 4), (7, 6), (8, 7), (9, 8), (10, 9)],
    ids=[
        "what the run is fed with",
        "a function",
        "copies",
        "what goes into a child",
        "a term",
        "another rank's term",
        "a sum",
        "copies of a sum",
        "the model's output",
        "copies of the model's output",
    ],
)
def test_the_edge_before_is_not_behind_the_guilty_one(guilty: int, edge: int | None) -> None:
    assert before(guilty) == edge


def test_the_edge_before_a_guilty_term_is_what_its_module_is_given(tmp_path: Path) -> None:
    result = bisect_target(str(write_deep_net(tmp_path, layers=4, changes=ROW_PARALLEL)), nproc=2)
    found, claim = result.first_divergence, result.claim
    assert found is not None
    assert claim is not None
    assert (found.check, found.module, found.rank) == (Check.PARTIAL, "layers.2.down", 1)
    assert claim.before is not None
    assert (claim.before.check, claim.before.module, claim.before.into, claim.before.verdict) == (
        Check.WIRING,
        "layers.2",
        "layers.2.down",
        Verdict.ALIGNED,
    )
    edges = [j for j in result.outcome.judgements if j.check is not Check.PARAMETER]
    places = {(j.check, j.module): n for n, j in enumerate(edges) if j.into is None}
    of_down = [places[check, "layers.2.down"] for check in (Check.PARTIAL, Check.FUNCTION, Check.REPLICA)]
    assert of_down == sorted(of_down)
    assert of_down[-1] < places[Check.REPLICA, "layers.2"]
    assert "the edge before it, layers.2, into down, is aligned" in " ".join(str(result).split())

"""Captures of two ranks: placements, collectives, and what the ranks must agree on."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard

from validator.capturing.copies import copy_tensor
from validator.capturing.manifest import ProofStatus
from validator.capturing.reader import open_capture
from validator.capturing.records import Mesh, Placement
from validator.capturing.session import capture, capture_run
from validator.errors import CaptureError

WIDTH, INNER = 6, 5  # INNER does not divide by two: the last shard is smaller.


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        return self.down(self.up(x))


class Communicating(nn.Module):
    """Each collective of `torch.distributed` once, in place and functional."""

    def forward(self, x):
        y = x + dist.get_rank()
        dist.all_reduce(y, op=dist.ReduceOp.MAX)
        gathered = [torch.empty_like(x) for _ in range(2)]
        dist.all_gather(gathered, x)
        scattered = torch.empty(1, 2)
        dist.reduce_scatter(scattered, list((x + dist.get_rank()).split(1)))
        swapped = torch.empty_like(x)
        dist.all_to_all_single(swapped, x + dist.get_rank())
        received = torch.full_like(x, -1)
        other = 1 - dist.get_rank()
        for work in (dist.isend(x + dist.get_rank(), other), dist.irecv(received, other)):
            work.wait()
        dist.broadcast(y, src=1)
        return y


class Straggler(nn.Module):
    """Computes something else on rank 1 when it is looked at."""

    def forward(self, x):
        return x + dist.get_rank() if self._forward_hooks else x


def tensor_parallel(rank, world_size, path):
    model = Mlp()
    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("tp",))
    parallelize_module(
        model, mesh, {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel()}
    )
    x = torch.linspace(-1, 1, 2 * WIDTH).reshape(2, WIDTH)
    summary = capture_run(lambda: model(x), model, path)
    return summary.ranks, summary.proof.status, not any(m._forward_hooks for m in (model,))


def communicating(rank, world_size, path):
    model = Communicating()
    capture_run(lambda: model(torch.ones(2, 2)), model, path)


def only_the_root(rank, world_size, path):
    model = nn.Sequential(Communicating())
    capture_run(lambda: model(torch.ones(2, 2)), model, path, include="")


def only_rank_1(rank, world_size, path):
    model = Mlp()
    return capture_run(lambda: model(torch.ones(1, WIDTH)), model, path, ranks=[1]).ranks


def straggling(rank, world_size, path):
    model = nn.Sequential(Straggler())
    return capture_run(lambda: model(torch.ones(2)), model, path).proof.status


def refused(rank, world_size, path, name, include):
    model = Mlp()
    try:
        with capture(model, f"{path}/{name}", include=include):
            model(torch.ones(1, WIDTH))
    except CaptureError as error:
        return str(error)
    return None


def stages(rank, world_size, path):
    """Ranks that hold other modules, as under pipeline parallelism."""
    model = nn.Module()
    stage = nn.Linear(2, 2)
    model.add_module(f"stage{rank}", stage)
    with capture(model, path, include=["stage0", "stage1"]):
        stage(torch.ones(1, 2))


def layouts(rank, world_size):
    mesh = init_device_mesh("cpu", (1, world_size), mesh_dim_names=("dp", "tp"))
    local = torch.ones(2, 2)
    strided = DTensor.from_local(local, mesh, [_StridedShard(0, split_factor=2), Shard(0)], run_check=False)
    partial = DTensor.from_local(local, mesh, [Replicate(), Partial("avg")], run_check=False)
    uneven = distribute_tensor(torch.arange(5.0), mesh, [Replicate(), Shard(0)])
    return [copy_tensor(x).layout for x in (strided, partial, uneven)]


@pytest.fixture
def ranks(rank_pool):
    return rank_pool(2)


def test_tensor_parallel_runs_keep_placements_and_the_partial_sums(ranks, tmp_path):
    answers = ranks.run(tensor_parallel, str(tmp_path / "tp"))
    assert answers == [((0, 1), ProofStatus.IDENTICAL, True)] * 2
    opened = open_capture(tmp_path / "tp")
    assert opened.manifest.world_size == 2
    mesh = Mesh(axes=("tp",), shape=(2,), ranks=(0, 1))
    assert opened.manifest.run["parallelism"]["meshes"] == [{"axes": ["tp"], "shape": [2], "ranks": [0, 1]}]
    assert [hardware["rank"] for hardware in opened.manifest.run["hardware"]] == [0, 1]

    whole, parts = Mlp(), [opened.rank(rank) for rank in range(2)]
    weights = [part.parameters["up.weight"].ref for part in parts]
    assert [w.meta.placements for w in weights] == [(Placement(kind="shard", dim=0),)] * 2
    assert [w.meta.shape for w in weights] == [(3, WIDTH), (2, WIDTH)]
    assert {w.meta.global_shape for w in weights} == {(INNER, WIDTH)}
    assert {w.meta.mesh for w in weights} == {mesh}
    assert torch.equal(torch.cat([w.read() for w in weights]), whole.up.weight)

    entered = []
    for part in parts:
        [collective] = part.collectives
        assert (collective.op, collective.reduce, collective.ranks) == ("all_reduce", "sum", (0, 1))
        down = part.calls[collective.call]
        assert down.module == "down"
        assert down.start < collective.start < down.end
        assert torch.equal(collective.left[0].read(), down.outputs[""].read())
        entered.append(collective.entered[0].read())
        shard = down.inputs["input"]
        assert shard.meta.placements == (Placement(kind="shard", dim=1),)
        weight = part.parameters["down.weight"].ref.read()
        assert torch.allclose(entered[-1], shard.read() @ weight.T)
    assert torch.equal(entered[0] + entered[1], parts[0].collectives[0].left[0].read())
    assert not torch.equal(entered[0], entered[1])


def test_what_enters_and_leaves_each_kind_of_collective_is_recorded(ranks, tmp_path):
    ranks.run(communicating, str(tmp_path / "run"))
    ones = torch.ones(2, 2)
    for rank in range(2):
        run = open_capture(tmp_path / "run").rank(rank)
        mine, theirs = ones + rank, ones + 1 - rank
        found = [
            (c.op, c.reduce, [t.read().tolist() for t in c.entered], [t.read().tolist() for t in c.left])
            for c in run.collectives
        ]
        assert [x[:2] for x in found] == [
            ("all_reduce", "max"),
            ("all_gather", None),
            ("reduce_scatter", "sum"),
            ("all_to_all", None),
            ("send", None),
            ("recv", None),
            ("broadcast", None),
        ]
        sides = {op: (entered, left) for op, _, entered, left in found}
        assert sides["all_reduce"] == ([mine.tolist()], [(ones + 1).tolist()])
        assert sides["all_gather"] == ([ones.tolist()], [ones.tolist()] * 2)
        assert sides["reduce_scatter"] == ([x.tolist() for x in mine.split(1)], [[[3.0, 3.0]]])
        assert sides["all_to_all"] == ([mine.tolist()], [[[1.0, 1.0], [2.0, 2.0]]])
        assert sides["send"] == ([mine.tolist()], [])
        assert sides["recv"] == ([], [theirs.tolist()])
        assert {c.ranks for c in run.collectives} == {(0, 1)}
        assert {c.call for c in run.collectives} == {0}


def test_a_collective_belongs_to_the_nearest_call_that_is_recorded(ranks, tmp_path):
    ranks.run(only_the_root, str(tmp_path / "run"))
    run = open_capture(tmp_path / "run").rank(0)
    assert [call.module for call in run.calls] == [""]
    assert {c.call for c in run.collectives} == {0}
    assert len(run.collectives) == 7


def test_only_the_ranks_that_are_asked_for_are_recorded(ranks, tmp_path):
    assert ranks.run(only_rank_1, str(tmp_path / "run")) == [(1,), (1,)]
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["manifest.json", "rank1.h5"]
    opened = open_capture(tmp_path / "run")
    assert (opened.ranks, opened.manifest.world_size) == ((1,), 2)


def test_the_proof_is_that_of_the_worst_rank(ranks, tmp_path):
    assert ranks.run(straggling, str(tmp_path / "run")) == [ProofStatus.CHANGED] * 2
    proof = open_capture(tmp_path / "run").manifest.proof
    assert (proof.status, proof.difference) == (ProofStatus.CHANGED, 1.0)


def test_all_ranks_are_told_why_a_capture_was_refused(ranks, tmp_path):
    for name, include, message in [
        ("run.h5", None, "one file for one rank, and this run has 2 ranks"),
        ("run", "nothing*", "'nothing*' matches no module of this model"),
    ]:
        answers = ranks.run(refused, str(tmp_path), name, include)
        assert answers[0] == answers[1]
        assert message in answers[0]
    assert list(tmp_path.iterdir()) == []
    assert ranks.run(refused, str(tmp_path), "run", None) == [None, None]
    answers = ranks.run(refused, str(tmp_path), "run", None)
    assert "exists already" in answers[0]
    assert answers[0] == answers[1]


def test_a_pattern_may_match_on_another_rank(ranks, tmp_path):
    ranks.run(stages, str(tmp_path / "run"))
    opened = open_capture(tmp_path / "run")
    assert [[c.module for c in opened.rank(rank).calls] for rank in range(2)] == [["stage0"], ["stage1"]]
    assert opened.manifest.silent == ()


def test_layouts_of_unusual_dtensors_are_read(ranks):
    for rank, (strided, partial, uneven) in enumerate(ranks.run(layouts)):
        assert strided.placements == (
            Placement(kind="shard", dim=0, stride=2),
            Placement(kind="shard", dim=0),
        )
        assert strided.mesh == Mesh(axes=("dp", "tp"), shape=(1, 2), ranks=(0, 1))
        assert partial.placements == (Placement(kind="replicate"), Placement(kind="partial", reduce="avg"))
        assert (uneven.shape, uneven.global_shape) == (((3,), (2,))[rank], (5,))

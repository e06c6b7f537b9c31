"""Ranks on hosts that share no folder: what each writes is copied into one folder, and is the capture."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.ranks import RankPool
from validator.capturing.place import partial_path
from validator.capturing.reader import open_capture
from validator.capturing.session import capture_run
from validator.errors import CaptureError, IncompleteCaptureError


class Summing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x + dist.get_rank()
        dist.all_reduce(y)
        return y


def host_of(rank: int) -> str:
    return "one" if rank == 0 else "two"


def run(rank: int, world_size: int, folder: str) -> str | None:
    """Capture into the host's own folder: rank 0 is alone on the first."""
    model = Summing()
    try:
        capture_run(lambda: model(torch.ones(2)), model, f"{folder}/{host_of(rank)}/run", proof=False)
    except CaptureError as error:
        return str(error)
    return None


@pytest.fixture
def ranks(rank_pool: Callable[[int], RankPool]) -> RankPool:
    return rank_pool(3)


def merged(folder: Path, *hosts: str) -> Path:
    for host in hosts:
        shutil.copytree(folder / host / "run", folder / "merged", dirs_exist_ok=True)
    return folder / "merged"


@pytest.mark.parametrize("hosts", [("one", "two"), ("two", "one")], ids=["in order", "the other way round"])
def test_folders_of_two_hosts_are_one_capture_once_copied_together(
    hosts: tuple[str, str], ranks: RankPool, tmp_path: Path
) -> None:
    assert ranks.run(run, str(tmp_path)) == [None] * 3

    names = {host: sorted(file.name for file in (tmp_path / host / "run").iterdir()) for host in hosts}
    assert names == {"one": ["manifest.json", "rank0.h5"], "two": ["manifest.json", "rank1.h5", "rank2.h5"]}
    opened = open_capture(merged(tmp_path, *hosts))
    assert (opened.complete, opened.ranks, opened.manifest.world_size) == (True, (0, 1, 2), 3)
    outputs = [opened.rank(rank).calls[0].outputs[""].read() for rank in range(3)]
    assert all(torch.equal(output, torch.full((2,), 6.0)) for output in outputs)
    assert [described["rank"] for described in opened.manifest.run["hardware"]] == [0, 1, 2]


def test_missing_ranks_are_named_with_their_host(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(run, str(tmp_path))
    path = merged(tmp_path, "one")
    with pytest.raises(IncompleteCaptureError) as error:
        open_capture(path)
    host = open_capture(path, allow_incomplete=True).manifest.host_of(1)
    assert str(error.value) == (
        f"{path}: ranks 1, 2 of 3 are missing. Each host writes its own ranks' files: "
        f"copy rank1.h5, rank2.h5 from host {host!r} into this folder."
    )


def test_what_is_there_of_a_capture_with_missing_ranks_can_be_read(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(run, str(tmp_path))
    opened = open_capture(merged(tmp_path, "two"), allow_incomplete=True)
    assert (opened.complete, opened.ranks) == (False, (1, 2))
    assert opened.rank(2).calls[0].outputs[""].read().tolist() == [6.0, 6.0]


def test_a_file_of_another_run_is_not_taken_for_this_one_s(ranks: RankPool, tmp_path: Path) -> None:
    for name in ("first", "second"):
        ranks.run(run, str(tmp_path / name))
    path = merged(tmp_path / "first", "one", "two")
    shutil.copy(tmp_path / "second" / "two" / "run" / "rank1.h5", path)
    with pytest.raises(
        CaptureError, match=r"rank1\.h5: is of capture .* files of several captures were mixed"
    ):
        open_capture(path)


def test_a_place_that_one_host_can_t_claim_is_said_on_all_and_nothing_is_left(
    ranks: RankPool, tmp_path: Path
) -> None:
    (tmp_path / "two" / "run").mkdir(parents=True)
    errors = ranks.run(run, str(tmp_path))
    assert all(error is not None and f"{tmp_path}/two/run exists already" in error for error in errors)
    assert not partial_path(tmp_path / "one" / "run").exists()

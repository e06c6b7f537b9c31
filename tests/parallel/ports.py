"""A port that is split over ranks: a small model of transformers, sharded by hand or by a plan."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers.distributed import DistributedConfig

import validator
from tests.families import FAMILIES, VOCABULARY
from tests.models import TRAINED
from tests.ranks import RankPool
from validator.capturing.session import capture_run
from validator.checks.findings import Finding
from validator.content import find_model
from validator.report.result import Result
from validator.runs import copied

__all__ = ["Port", "assert_aligned", "first", "inputs", "judged"]

BATCH, TOKENS = 2, 24

Spoil = Callable[[nn.Module], None]


def _call(model: nn.Module, given: Mapping[str, Any]) -> Any:
    return model(**given)


def inputs() -> dict[str, Any]:
    """Return keyword arguments of the models: `input_ids` is `[BATCH, TOKENS]`."""
    generator = torch.Generator().manual_seed(1)
    return {"input_ids": torch.randint(VOCABULARY, (BATCH, TOKENS), generator=generator), "use_cache": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A reference with one way to split it over ranks.

    Attributes:
        family: a name in `FAMILIES` or `TRAINED`; a trained model has all its layers.
        ranks: how many.
        shard: makes this rank's part of a whole model, in place, and returns what is to be captured; None
            where `distributed` does it.
        changes: of the family's configuration, which has two layers unless they say otherwise.
        fill: changes weights in place.
        distributed: arguments of `DistributedConfig`, with which transformers shards as it loads.
        given: makes the keyword arguments of the models.
        run: feeds one rank.
        dtype: the candidate's.
        kernel: the candidate's attention implementation.
        declared: further arguments of `validator.check`.
    """

    family: str
    ranks: int
    shard: Callable[[nn.Module], nn.Module] | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    fill: Callable[[nn.Module], None] | None = None
    distributed: Mapping[str, Any] | None = None
    given: Callable[[], dict[str, Any]] = inputs
    run: Callable[[nn.Module, Mapping[str, Any]], Any] = _call
    dtype: str = "bfloat16"
    kernel: str = "eager"
    declared: Mapping[str, Any] = field(default_factory=dict)

    def checkpoint(self, folder: Path) -> Path:
        """Save the reference under `folder` and return where."""
        if self.family in TRAINED:
            return find_model(self.family)
        path = folder / "checkpoint"
        if not path.exists():
            family = FAMILIES[self.family]
            config = family.config(False)
            text = config.get_text_config()
            for name, value in ({"num_hidden_layers": 2} | dict(self.changes)).items():
                setattr(text, name, value)
            if getattr(text, "layer_types", None):
                text.layer_types = text.layer_types[: text.num_hidden_layers]
            _quiet()
            model = getattr(transformers, family.auto).from_config(config)
            family.fill(model, torch.Generator().manual_seed(0))
            if self.fill is not None:
                with torch.no_grad():
                    self.fill(model)
            model.save_pretrained(path)
        return path

    def candidate(self, path: Path) -> nn.Module:
        """Build this rank's part; to be called on every rank."""
        options: dict[str, Any] = {}
        if self.distributed is not None:
            options["distributed_config"] = DistributedConfig(**self.distributed)
        model = self.load(path, dtype=self.dtype, attn_implementation=self.kernel, **options)
        with torch.no_grad():
            return model if self.shard is None else self.shard(model)

    def load(self, path: Path, **options: Any) -> nn.Module:
        """Load the checkpoint, whole or as `options` of `from_pretrained` say."""
        _quiet()
        # The kernels of experts leave rows of other ranks' experts unwritten.
        if "moe" in json.loads((path / "config.json").read_text())["model_type"]:
            options["experts_implementation"] = "eager"
        auto = "AutoModelForCausalLM" if self.family in TRAINED else FAMILIES[self.family].auto
        model: nn.Module = getattr(transformers, auto).from_pretrained(path, local_files_only=True, **options)
        return model.eval()


def judged(port: Port, folder: Path, pool: Callable[[int], RankPool], spoil: Spoil | None = None) -> Result:
    """Run a port on its ranks and judge it.

    Args:
        port: what to run.
        folder: for the checkpoint, kept, and the capture, removed.
        pool: gives the ranks of a world size.
        spoil: plants a fault in what `port.candidate` returns; called on every rank.
    """
    path, captured = port.checkpoint(folder), folder / "candidate"
    try:
        pool(port.ranks).run(_capture, port, path, captured, spoil, timeout_s=300)
        reference = port.load(path, dtype="auto", attn_implementation="eager")
        return validator.check(reference=reference, candidate=captured, inputs=port.given(), **port.declared)
    finally:
        shutil.rmtree(captured, ignore_errors=True)


def assert_aligned(result: Result, *, unchecked: tuple[str, ...] = ()) -> None:
    """Assert that nothing was found, and nothing left out but these modules."""
    assert [finding.summary for finding in result.findings] == []
    left_out = {f"{item.module}: {item.why}" for item in result.outcome.unchecked}
    assert {text for text in left_out if text.partition(":")[0] not in unchecked} == set()
    assert result.verdict.value == "aligned"


def first(result: Result) -> tuple[str, str | None, int | None]:
    """Return the module, the child it leads into and the rank of the first finding."""
    found: Finding = result.findings[0]
    return found.module, found.into, found.rank


def _capture(rank: int, world_size: int, port: Port, path: Path, output: Path, spoil: Spoil | None) -> None:
    model, given = port.candidate(path), port.given()
    if spoil is not None:
        with torch.no_grad():
            spoil(model)
    capture_run(lambda: port.run(model, copied(given)), model, output, inputs=given, overwrite=True)


def _quiet() -> None:
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()

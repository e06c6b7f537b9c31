"""Runs of several steps on small models, judged in this process."""

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, DynamicCache

from tests.families import FAMILIES
from validator.capturing.reader import open_capture
from validator.capturing.session import capture_run
from validator.judging import judged
from validator.numerics.recipes import Recipe
from validator.report.result import Result

__all__ = ["PADDED", "Run", "chunked", "generated", "in_turn", "judge", "pair", "prompts"]

Run = Callable[[nn.Module], Any]

PADDED = (0, 3, 5)
"""How many tokens of each sequence are padding, where there are three."""


def pair(
    family: str, *, dtype: torch.dtype = torch.bfloat16, kernel: str = "eager", **config: Any
) -> tuple[Any, Any]:
    """Return a reference of two layers and its candidate, which computes in another dtype."""
    found = FAMILIES[family]
    made = found.config(False)
    made.num_hidden_layers = 2
    is_derived = isinstance(getattr(type(made), "layer_types", None), property)
    if getattr(made, "layer_types", None) and not is_derived:
        made.layer_types = made.layer_types[:2]
    for name, value in config.items():
        setattr(made, name, value)
    reference = AutoModelForCausalLM.from_config(made, attn_implementation=kernel).eval()
    found.fill(reference, torch.Generator().manual_seed(0))
    candidate = copy.deepcopy(reference)
    for parameter in candidate.parameters():  # and not the rotary frequencies, which Module.to would cast too
        parameter.data = parameter.data.to(dtype)
    candidate.config.dtype = dtype
    return reference, candidate


def prompts(batch: int = 2, tokens: int = 8, padding: tuple[int, ...] = ()) -> dict[str, torch.Tensor]:
    """Return `input_ids` and `attention_mask`, `[batch, tokens]`, padded on the left."""
    ids = torch.randint(3, 250, (batch, tokens), generator=torch.Generator().manual_seed(5))
    mask = torch.ones_like(ids)
    for row, count in enumerate(padding):
        mask[row, :count] = 0
    return {"input_ids": ids, "attention_mask": mask}


def generated(
    new: int = 4, *, batch: int = 2, prompt: int = 8, padding: tuple[int, ...] = (), **options: Any
) -> Run:
    """Return a run that generates greedily."""
    given = prompts(batch, prompt, padding)

    def run(model: Any) -> Any:
        options.setdefault("pad_token_id", 0)
        return model.generate(**given, max_new_tokens=new, min_new_tokens=new, do_sample=False, **options)

    return run


def chunked(*sizes: int, batch: int = 2, padding: tuple[int, ...] = ()) -> Run:
    """Return a run that feeds a prompt in chunks of these sizes to a dynamic cache, without positions."""
    given = prompts(batch, sum(sizes), padding)

    def run(model: Any) -> Any:
        cache, start, made = DynamicCache(config=model.config), 0, []
        for size in sizes:
            stop = start + size
            made.append(
                model(
                    input_ids=given["input_ids"][:, start:stop],
                    attention_mask=given["attention_mask"][:, :stop],
                    past_key_values=cache,
                    use_cache=True,
                ).logits
            )
            start = stop
        return made

    return run


def in_turn(*runs: Run) -> Run:
    """Return a run that makes others one after the other."""
    return lambda model: [run(model) for run in runs]


def judge(
    reference: nn.Module,
    candidate: nn.Module,
    run: Run,
    *,
    recipe: Recipe | None = None,
    operators: str | None = None,
    repro: Path | None = None,
) -> Result:
    """Capture both sides, the reference on its own steps, and judge the candidate.

    Args:
        reference: the trusted model.
        candidate: the other one.
        run: feeds either.
        recipe: what is declared.
        operators: glob of the candidate's modules whose operators are captured as well.
        repro: folder for a reproducer.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = {side: Path(folder) / f"{side}.h5" for side in ("reference", "candidate")}
        capture_run(lambda: run(reference), reference, paths["reference"], proof=False)
        capture_run(lambda: run(candidate), candidate, paths["candidate"], operators=operators)
        return judged(
            reference=reference,
            ref=open_capture(paths["reference"]),
            cand=open_capture(paths["candidate"]),
            run=run,
            recipe=recipe,
            names={},
            layout={},
            mesh=None,
            about={},
            progress=lambda stage, done, total: None,
            repro=repro,
        )

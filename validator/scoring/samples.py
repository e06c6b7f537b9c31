"""Prompts with scores of both sides, as evaluations leave them: lm-eval's sample files, or plain JSON lines.

lm-eval (`--log_samples`) writes a line a question: `doc_id`, the requests under `arguments`, what came back
under `resps` and `filtered_resps`, and each metric's value under its name. A plain line holds both sides:
`{"prompt": "..."` or `"input_ids": [...]`, `"reference": 1.0, "candidate": 0.0}`.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validator.errors import UsageError

__all__ = ["Sample", "ranked", "read_files", "read_pairs", "read_samples"]

_NO_METRICS = frozenset(
    {"doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"}
)
_LESS_IS_BETTER = ("perplexity", "bits_per_byte", "loss", "ter", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A prompt, and what each side scored on it.

    Attributes:
        name: where it stands: its `doc_id`, or its line.
        prompt: text, or None where it is given as tokens.
        input_ids: tokens, or None.
        continuation: text whose probability was asked for after the prompt; empty where one was generated.
        metric: what the scores are.
        ref, cand: scores of both sides, the greater the better.
    """

    name: str
    prompt: str | None = None
    input_ids: tuple[int, ...] | None = None
    continuation: str = ""
    metric: str = "score"
    ref: float
    cand: float

    @property
    def lost(self) -> float:
        """How much worse the candidate is."""
        return self.ref - self.cand


def ranked(samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
    """Return the samples on which the candidate is worse, the worst first; equal ones in their own order."""
    return tuple(sorted((sample for sample in samples if sample.lost > 0), key=lambda sample: -sample.lost))


def read_files(paths: Sequence[Path]) -> tuple[Sample, ...]:
    """Read one file with the scores of both sides, or lm-eval's of the reference and of the candidate."""
    return read_pairs(paths[0]) if len(paths) == 1 else read_samples(paths[0], paths[1])


def read_samples(ref: Path, cand: Path, *, metric: str | None = None) -> tuple[Sample, ...]:
    """Read lm-eval's sample files of both sides.

    Args:
        ref: the reference's `samples_*.jsonl`.
        cand: the candidate's, of the same task.
        metric: name of a metric; default the first that the file names, else the first with a number.

    Raises:
        UsageError: a file can't be read, is nothing of the kind, or the two share no question.
    """
    ours, theirs = _by_question(ref), _by_question(cand)
    shared = [key for key in ours if key in theirs]
    if not shared:
        raise UsageError(
            f"{ref} has {len(ours)} questions and {cand} {len(theirs)}, and none of a doc_id and filter that "
            "both have: give the sample files of one task, from both sides"
        )
    name = metric or _metric(ours[shared[0]], ref)
    found = []
    for key in shared:
        mine, other = ours[key], theirs[key]
        values = [_number(line.get(name), name, path) for line, path in ((mine, ref), (other, cand))]
        sign = -1.0 if any(word in name for word in _LESS_IS_BETTER) else 1.0
        prompt, continuation = _request(mine, other, ref)
        found.append(
            Sample(
                name=f"doc {mine['doc_id']}",
                prompt=prompt,
                continuation=continuation,
                metric=name,
                ref=sign * values[0],
                cand=sign * values[1],
            )
        )
    return tuple(found)


def read_pairs(path: Path) -> tuple[Sample, ...]:
    """Read plain JSON lines that hold both sides' scores.

    Raises:
        UsageError: the file can't be read, or a line lacks a prompt or a score.
    """
    found = []
    for number, line in _lines(path):
        ids, prompt = line.get("input_ids"), line.get("prompt")
        is_ids = (
            isinstance(ids, list) and bool(ids) and all(type(token) is int and token >= 0 for token in ids)
        )
        if not is_ids and not isinstance(prompt, str):
            raise UsageError(
                f'line {number} of {path} has no prompt: write {{"prompt": "...", "reference": 1.0, '
                '"candidate": 0.0}, or "input_ids" with a list of tokens'
            )
        scores = [_number(line.get(side), side, path, number) for side in ("reference", "candidate")]
        found.append(
            Sample(
                name=f"line {number}",
                prompt=None if is_ids else prompt,
                input_ids=tuple(ids) if is_ids and isinstance(ids, list) else None,
                ref=scores[0],
                cand=scores[1],
            )
        )
    if not found:
        raise UsageError(f"{path} holds no prompts: write one JSON object a line")
    return tuple(found)


def _lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the samples {path} can't be read: {error}") from None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"line {number} of {path} is no JSON: {error}") from None
        if not isinstance(found, dict):
            raise UsageError(f"line {number} of {path} is {line[:60]!r}; it must be a JSON object")
        yield number, found


def _by_question(path: Path) -> dict[tuple[str, str], Mapping[str, Any]]:
    found = {}
    for number, line in _lines(path):
        if "doc_id" not in line or "arguments" not in line:
            raise UsageError(
                f"line {number} of {path} has {', '.join(list(line)[:6])} and no doc_id and arguments: it is "
                "no sample file of lm-eval (run it with --log_samples)"
            )
        found[(str(line["doc_id"]), str(line.get("filter", "")))] = line
    return found


def _metric(line: Mapping[str, Any], path: Path) -> str:
    named = line.get("metrics")
    names = [str(name) for name in named] if isinstance(named, list) else []
    names += [name for name in line if name not in _NO_METRICS and not name.endswith("_hash")]
    for name in names:
        if isinstance(line.get(name), int | float):
            return name
    raise UsageError(f"the questions of {path} have no metric with a number; they have {', '.join(line)}")


def _number(value: Any, name: str, path: Path, line: int | None = None) -> float:
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    where = "" if line is None else f"line {line} of "
    raise UsageError(f"{name} in {where}{path} is {value!r}; it must be a finite number")


def _request(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: Path) -> tuple[str, str]:
    """Return the request whose answers differ most: its context, and the continuation that was scored."""
    requests = _requests(ours["arguments"])
    if not requests:
        raise UsageError(
            f"doc_id {ours['doc_id']} of {path} has no text in its arguments, which are "
            f"{str(ours['arguments'])[:80]!r}"
        )
    answers = [_likelihoods(line.get("resps")) for line in (ours, theirs)]
    apart = [
        abs(mine - other) if mine is not None and other is not None else 0.0
        for mine, other in zip(*answers, strict=False)
    ]
    worst = max(range(len(requests)), key=lambda i: apart[i] if i < len(apart) else 0.0)
    return requests[worst]


def _requests(arguments: Any) -> list[tuple[str, str]]:
    """Return context and continuation of each request, of both forms in which lm-eval writes them."""
    each = list(arguments.values()) if isinstance(arguments, dict) else arguments
    found = []
    for request in each if isinstance(each, list) else []:
        parts = list(request.values()) if isinstance(request, dict) else request
        if isinstance(parts, list) and parts and isinstance(parts[0], str):
            second = parts[1] if len(parts) > 1 else ""
            found.append((parts[0], second if isinstance(second, str) else ""))
    return found


def _likelihoods(resps: Any) -> list[float | None]:
    """Return the log-likelihood that each request gave, None where it gave a text."""
    found: list[float | None] = []
    for answer in resps if isinstance(resps, list) else []:
        value = answer
        while isinstance(value, list) and value:
            value = value[0]
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        found.append(number if math.isfinite(number) else None)
    return found

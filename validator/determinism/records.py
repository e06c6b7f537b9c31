"""What the levels of determinism answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Answer", "Difference", "Problem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first tensor whose bits differ between two runs.

    Attributes:
        module: fqn of the call that it belongs to; the model itself is `""`.
        call: how many calls of this module came before.
        rank: where, or None where it is put together from several.
        side: `"inputs"`, `"outputs"`, `"operators"`, `"entered"` or `"left"` (a collective).
        path: where it stands there.
        op: the operator or collective, or `""`.
        caller: fqn of the call that encloses it, which made its inputs, or None.
        mismatched, elements: how many elements differ, of how many; -1 where that was not counted.
    """

    module: str
    call: int
    rank: int | None
    side: str
    path: str = ""
    op: str = ""
    caller: str | None = None
    mismatched: int = -1
    elements: int = -1

    @property
    def culprit(self) -> str:
        """The module whose own computation made the difference."""
        return self.caller if self.side == "inputs" and self.caller is not None else self.module

    def __str__(self) -> str:
        """Return where it is, in words."""
        name = self.module or "the model"
        match self.side:
            case "inputs":
                what = f"what goes into {name}"
            case "outputs":
                what = f"the output of {name}"
            case "operators":
                what = f"the result of {self.op} in {name}"
            case _:
                what = f"what {self.side} {self.op} in {name}"
        details = [f"call {self.call}"] + ([] if self.rank is None else [f"rank {self.rank}"])
        if self.mismatched >= 0:
            details.append(f"{self.mismatched} of {self.elements} elements")
        return f"{what} ({', '.join(details)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One way in which a candidate is not what its level demands.

    Attributes:
        text: one or two sentences, the module and the cause among them.
        module: fqn of the module to blame, or None.
        rank: the rank to blame, or None.
        cause: the operator or collective behind it, or `""`.
    """

    text: str
    module: str | None = None
    rank: int | None = None
    cause: str = ""

    def __str__(self) -> str:
        """Return the text."""
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one level says of a candidate.

    Attributes:
        problems: empty where the candidate is as its level demands.
        compared: how many tensors were compared.
        figures: by name.
        notes: what a reader should know of a healthy candidate, such as where its bits differ.
        skipped: why nothing could be asked, or None.
        blind: why an absence of problems proves nothing: the control was not seen; or None.
    """

    problems: tuple[Problem, ...] = ()
    compared: int = 0
    figures: Mapping[str, int | str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    skipped: str | None = None
    blind: str | None = None

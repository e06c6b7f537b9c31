"""Where a piece of code attends: its scores, keys and values, and what they would be of other keys.

A fused kernel is one operation. Else it is the softmax that stands between two products: what enters it
before keys are hidden are the scores.

Shape legend: B = sequences, H = query heads, S = queries, T = keys, D = channels of a head.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from validator.checks.operations import Operation, Value
from validator.checks.operators import ATTENTION
from validator.checks.products import PRODUCTS
from validator.checks.roundings import Constant, Rounding
from validator.checks.tape import Diverted, Tape

__all__ = [
    "BATCHED",
    "AttentionSite",
    "EntryOf",
    "attention_operations",
    "behind_attention",
    "find_attention",
    "made_by",
    "products_around",
]

HIDDEN = -1e4
"""What is added to a score to hide its key is no larger: float16 has no room for less than -65504."""

BATCHED = ("bmm", "baddbmm")
"""Products of batches of matrices, by name."""

_FACTORS = 2
_EXPONENTIALS = ("_softmax", "exp", "exp2")


class Called(Protocol):
    """What is looked at of an operation to find attention."""

    @property
    def name(self) -> str:
        """Of the operator."""

    @property
    def rounds(self) -> bool:
        """Whether it rounds, rather than only moves, selects or fills values."""


_Op = TypeVar("_Op", bound=Called)
EntryOf = tuple[_Op, tuple[int, ...], tuple[int | None, ...]]
"""An operation with the slots that its values come from and go to."""

_Entry = EntryOf[Operation]
_Entries = Sequence[_Entry]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSite:
    """One attention in a piece of code, in float64.

    Attributes:
        tape: of the code.
        weights: `[B, H, S, T]` exp(score) as a share of what the code's softmax divides by, of hidden keys
            too. Of a query that sees no key they are 0.
        seen: `[B, H, S, T]` boolean, which keys take part.
        keys, values: `[B, H, T, D]`, once for each query head.
    """

    tape: Tape = field(repr=False)
    weights: Tensor
    seen: Tensor
    keys: Tensor
    values: Tensor
    _slots: "_Slots"
    _scores: Tensor

    @property
    def output(self) -> Tensor:
        """`[B, H, S, D]` what the code makes of it."""
        return self.weights.where(self.seen, 0.0) @ self.values

    def weights_of(self, keys: Tensor) -> Tensor | None:
        """Return the weights `[B, H, S, T]` that other keys `[B, H, T, D]` would have, or None.

        They are shares of what the softmax divides by now.
        """
        scores = self._slots.scores(self.tape, keys)
        if scores is None or scores.shape != self._scores.shape:
            return None
        return self.weights * torch.exp(scores - self._scores)

    def scale(self, constants: Iterable[Constant]) -> float | None:
        """Return the number that scores are multiplied by; None where no constant of the code is that.

        Args:
            constants: of the code.
        """
        return self._slots.scale(self.tape, self.keys, constants)

    def given_otherwise(self, changes: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor] | None:
        """Return the keys and values `[B, H, T, D]` of code that is given other tensors.

        Args:
            changes: what the code was given, and what it is given in its place.

        Returns:
            None where it was given none of these, or takes another path with the others.
        """
        replaced = {
            slot: moved_new
            for slot, data in self.tape.given.items()
            for old, new in changes
            for moved_old, moved_new in zip(_layouts(old, data), _layouts(new, data), strict=True)
            if moved_old.shape == data.shape == moved_new.shape and torch.equal(moved_old, data)
        }
        return self._slots.operands(self.tape, replaced) if replaced else None


def find_attention(tape: Tape) -> AttentionSite | None:
    """Return the attention of a piece of code; None where it has none, or several."""
    entries = tape.operations
    only = _only_attention(entries)
    if only is None:
        return None
    is_fused = only[0].name == ATTENTION
    slots = _Fused.find(only) if is_fused else _Composed.find(tape, entries, only)
    return None if slots is None else slots.site(tape)


def attention_operations(tape: Tape) -> tuple[Operation, ...]:
    """Return the operations that read the keys and the values of a piece of code.

    Returns:
        A fused kernel; or the product of queries and keys, and that of probabilities and values; nothing
        where there is no attention, or several.
    """
    entries = tape.operations
    only = _only_attention(entries)
    if only is None:
        return ()
    if only[0].name == ATTENTION:
        return (only[0],)
    around = products_around(entries, only, made_by(entries))
    return () if around is None else (around[0][0], around[1][0])


def products_around(
    entries: Iterable[EntryOf[_Op]], softmax: EntryOf[_Op], makers: Mapping[int, EntryOf[_Op]]
) -> tuple[EntryOf[_Op], EntryOf[_Op]] | None:
    """Return the products before and after a softmax; None where there are none of two factors.

    Args:
        entries: the operations, of which those before the softmax may be left out.
        softmax: one of them.
        makers: `made_by` of all.
    """
    path = _back_to_product(makers, softmax[1][0])
    second = _on_to_product(entries, softmax)
    if not path or second is None:
        return None
    first = makers[path[0]]
    return (first, second) if len(first[1]) == len(second[1]) == _FACTORS else None


def behind_attention(tape: Tape) -> frozenset[Any]:
    """Return the keys of the values of a piece of code that depend on what may be attention of any kind.

    That is a fused kernel, or exponentials of what two batches of matrices make, in whatever order.
    """
    entries = tape.operations
    makers = made_by(entries)
    starts = set()
    for operation, sources, targets in entries:
        if operation.name == ATTENTION:
            starts |= {slot for slot in targets if slot is not None}
        elif operation.name in _EXPONENTIALS:
            path = _back_to_product(makers, sources[0])
            if path and makers[path[0]][0].name in BATCHED:
                starts.add(path[0])
    return tape.behind(starts)


def _only_attention(entries: _Entries) -> _Entry | None:
    """Return the one fused kernel or softmax; None where there is none, or several."""
    found = [entry for entry in entries if entry[0].name in (ATTENTION, "_softmax")]
    return found[0] if len(found) == 1 else None


def made_by(entries: Sequence[EntryOf[_Op]]) -> dict[int, EntryOf[_Op]]:
    """Return the operation that made each slot."""
    return {slot: entry for entry in entries for slot in entry[2] if slot is not None}


class _Slots:
    """Where on a tape the parts of one attention are."""

    def site(self, tape: Tape) -> AttentionSite | None:
        raise NotImplementedError

    def scores(self, tape: Tape, keys: Tensor) -> Tensor | None:
        raise NotImplementedError

    def scale(self, tape: Tape, keys: Tensor, constants: Iterable[Constant]) -> float | None:
        raise NotImplementedError

    def operands(self, tape: Tape, replaced: Mapping[int, Tensor]) -> tuple[Tensor, Tensor] | None:
        raise NotImplementedError

    def _site(
        self, tape: Tape, scores: Tensor, p: Tensor, keys: Tensor, values: Tensor
    ) -> AttentionSite | None:
        """Make a site of scores before keys are hidden, and the probabilities after, `[B, H, S, T]` both."""
        best = p.argmax(-1, keepdim=True)
        top = p.gather(-1, best)
        size = scores.gather(-1, best) - torch.log(top)
        weights = torch.exp(scores - size).where(top > 0, 0.0).nan_to_num(nan=0.0, posinf=0.0)
        return AttentionSite(
            tape=tape,
            weights=weights,
            seen=p > 0,
            keys=keys,
            values=values,
            _slots=self,
            _scores=scores,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fused(_Slots):
    """One operation; `sources` are the slots of its values."""

    operation: Operation
    sources: tuple[int, ...]

    @classmethod
    def find(cls, entry: _Entry) -> "_Fused":
        return cls(operation=entry[0], sources=entry[1])

    def site(self, tape: Tape) -> AttentionSite | None:
        named = self._named(tape, {})
        if named is None:
            return None
        scores, (keys, values) = self._scored(named, None), self._spread(named)
        hidden = torch.zeros_like(scores)
        if named.get("is_causal"):
            hidden.masked_fill_(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
        mask = named.get("attn_mask")
        if mask is not None:
            hidden = (
                hidden.masked_fill(~mask, -torch.inf)
                if mask.dtype == torch.bool
                else hidden + mask.where(mask > HIDDEN, -torch.inf)
            )
        # What is added but hides nothing is part of the score.
        scores = scores + hidden.where(hidden.isfinite(), 0.0)
        p = torch.softmax(scores.where(hidden.isfinite(), -torch.inf), -1).nan_to_num(nan=0.0)
        return self._site(tape, scores, p, keys, values)

    def scores(self, tape: Tape, keys: Tensor) -> Tensor | None:
        named = self._named(tape, {})
        if named is None:
            return None
        mask = named.get("attn_mask")
        scores: Tensor = self._scored(named, keys)
        if mask is None or mask.dtype == torch.bool:
            return scores
        added: Tensor = mask.where(mask > HIDDEN, 0.0)
        return scores + added

    def scale(self, tape: Tape, keys: Tensor, constants: Iterable[Constant]) -> float | None:
        named = self._named(tape, {})
        return None if named is None else float(named["scale"])

    def operands(self, tape: Tape, replaced: Mapping[int, Tensor]) -> tuple[Tensor, Tensor] | None:
        named = self._named(tape, replaced)
        return None if named is None else self._spread(named)

    def _named(self, tape: Tape, replaced: Mapping[int, Tensor]) -> dict[str, Any] | None:
        made = _played(tape, self.sources, replaced)
        if made is None:
            return None
        inputs = [made[slot] for slot in self.sources]
        return self.operation.arguments(inputs, "data64", Rounding.none())[1]

    def _scored(self, named: Mapping[str, Any], keys: Tensor | None) -> Tensor:
        keys = self._spread(named)[0] if keys is None else keys
        scores: Tensor = named["query"] @ keys.mT * named["scale"]
        return scores

    def _spread(self, named: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        heads = named["query"].shape[-3]
        keys, values = (x.repeat_interleave(heads // x.shape[-3], -3) for x in (named["key"], named["value"]))
        return keys, values


@dataclass(frozen=True, slots=True, kw_only=True)
class _Composed(_Slots):
    """A softmax between two products.

    Attributes:
        keys: the second operand of the first product, `[B*H, D, T]`.
        unhidden: `[B, H, S, T]` scores before keys are hidden.
        hidden: the same after; what else enters the softmax (sinks) does so behind them.
        weights, values: the operands of the second product, `[B*H, S, T]` and `[B*H, T, D]`.
    """

    keys: int
    unhidden: int
    weights: int
    values: int

    @classmethod
    def find(
        cls,
        tape: Tape,
        entries: _Entries,
        softmax: _Entry,
    ) -> "_Composed | None":
        makers = made_by(entries)
        path = _back_to_product(makers, softmax[1][0])
        second = _on_to_product(entries, softmax)
        if not path or second is None:
            return None
        first = makers[path[0]]
        if len(first[1]) < 2:
            return None
        made = _played(tape, path, {})
        if made is None:
            return None
        unhidden = path[-1]
        for before, after in itertools.pairwise(path):
            low, lower = (float(made[slot].data64.min()) for slot in (before, after))
            if lower <= HIDDEN and lower < low + HIDDEN / 2:
                unhidden = before
                break
        return cls(keys=first[1][1], unhidden=unhidden, weights=second[1][0], values=second[1][1])

    def site(self, tape: Tape) -> AttentionSite | None:
        made = _played(tape, (self.keys, self.unhidden, self.weights, self.values), {})
        if made is None:
            return None
        scores, p = made[self.unhidden].data64, made[self.weights].data64
        if scores.dim() != 4 or p.numel() != scores.numel():
            return None
        keys, values = (made[slot].data64 for slot in (self.keys, self.values))
        shape = scores.shape[:2]
        return self._site(
            tape, scores, p.reshape(scores.shape), _in_heads(keys, shape).mT, _in_heads(values, shape)
        )

    def scores(self, tape: Tape, keys: Tensor) -> Tensor | None:
        operand = keys.mT.flatten(0, 1).contiguous()
        made = _played(tape, (self.unhidden,), {self.keys: operand})
        return None if made is None else made[self.unhidden].data64

    def scale(self, tape: Tape, keys: Tensor, constants: Iterable[Constant]) -> float | None:
        wanted = self.scores(tape, 2 * keys)
        if wanted is None:
            return None
        for constant in constants:
            made = _played(tape, (self.unhidden,), {}, Rounding.altering(constant, 2.0))
            found = None if made is None else made[self.unhidden].data64
            if found is not None and torch.allclose(found, wanted, rtol=1e-9, atol=0.0):
                return constant.value
        return None

    def operands(self, tape: Tape, replaced: Mapping[int, Tensor]) -> tuple[Tensor, Tensor] | None:
        made = _played(tape, (self.keys, self.values, self.unhidden), replaced)
        if made is None:
            return None
        shape = made[self.unhidden].data64.shape[:2]
        keys, values = (_in_heads(made[slot].data64, shape) for slot in (self.keys, self.values))
        return keys.mT, values


def _layouts(x: Tensor, like: Tensor) -> list[Tensor]:
    """Return what code may make of `[B, T, H*D]` or `[B, T, H, D]` before it computes: heads, turned halves.

    What only moves values is on no tape.
    """
    if like.dim() != 4 or x.numel() != like.numel() or x.dim() not in (3, 4):
        return [x]
    heads, tokens, channels = like.shape[1:]
    if x.shape[:2] != (like.shape[0], tokens) or x.shape[2:].numel() != heads * channels:
        return [x]
    moved = x.reshape(-1, tokens, heads, channels).transpose(1, 2)
    first, second = moved.chunk(2, -1)
    pairs = torch.stack((-moved[..., 1::2], moved[..., ::2]), -1).flatten(-2) if channels % 2 == 0 else moved
    return [x, moved, torch.cat((-second, first), -1), pairs]


def _played(
    tape: Tape, watched: Sequence[int], replaced: Mapping[int, Tensor], rounding: Rounding | None = None
) -> Mapping[Any, Value] | None:
    try:
        made = tape.play(rounding or Rounding.none(), watched=frozenset(watched), replaced=replaced)
    except (Diverted, RuntimeError):
        return None
    return made if all(slot in made for slot in watched) else None


def _in_heads(x: Tensor, shape: Sequence[int]) -> Tensor:
    return x.reshape(*shape, *x.shape[-2:])


def _back_to_product(makers: Mapping[int, EntryOf[_Op]], slot: int) -> list[int]:
    """Return the slots from the result of the nearest product to one that is made of it; empty for none."""
    entry = makers.get(slot)
    if entry is None:
        return []
    if entry[0].name in PRODUCTS:
        return [slot]
    for source in entry[1]:
        path = _back_to_product(makers, source)
        if path:
            return [*path, slot]
    return []


def _on_to_product(entries: Iterable[EntryOf[_Op]], softmax: EntryOf[_Op]) -> EntryOf[_Op] | None:
    """Return the product that what a softmax made, moved perhaps, is the first factor of."""
    reached = {slot for slot in softmax[2] if slot is not None}
    for entry in entries:
        operation, sources, targets = entry
        if operation.name in PRODUCTS and len(sources) > 1 and sources[0] in reached:
            return entry
        if not operation.rounds and reached.intersection(sources):
            reached |= {slot for slot in targets if slot is not None}
    return None

"""Tell a bad card from a bad program by two runs of one candidate whose ranks sit on other cards.

A card that computes wrong takes its fault along: the rank that sits on it in one run computes something else
than in the other run, and so does the rank that it moved to. A program that computes wrong does so on the
same rank in both. A difference counts where it arises: the first that a rank has, unless a
collective brought it from another.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from validator.capturing.manifest import Manifest
from validator.capturing.reader import Capture
from validator.capturing.records import RankCapture, TensorRef

__all__ = ["Cards", "Culprit", "judge_cards"]


class Culprit(StrEnum):
    """What a difference between the runs goes with; `neither` where there is no difference."""

    CARD = "card"
    RANK = "rank"
    NEITHER = "neither"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """What two runs on permuted cards say of the cards.

    Attributes:
        culprit: what the difference goes with.
        cards: that explain it, where it goes with a card; several where the permutation can't tell them.
        ranks: those where a difference arises, ascending.
        where: the module, or parameter, at which it arises on the first of them, or "".
    """

    culprit: Culprit
    cards: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    where: str = ""

    @property
    def summary(self) -> str:
        """One sentence, or two."""
        ranks = f"rank{'s' if len(self.ranks) > 1 else ''} {', '.join(map(str, self.ranks))}"
        at = f", first at {self.where}" if self.where else ""
        match self.culprit:
            case Culprit.NEITHER:
                return (
                    "nothing moves with the cards: every rank computes the same bits on another one, so a "
                    "fault in these runs is the program's"
                )
            case Culprit.RANK:
                return (
                    f"the difference stays with {ranks}{at}, and no other rank has one on the same card: the "
                    "program, which is not deterministic there, or a card that fails at times"
                )
            case Culprit.UNCLEAR:
                return (
                    f"differences arise on {ranks}{at}: those are no single card's, or what others received "
                    "hides theirs. Is the run deterministic?"
                )
        if len(self.cards) == 1:
            return f"the difference moves with a card, {self.cards[0]}: it arises on {ranks}{at}"
        return (
            f"the difference moves with a card, one of {' and '.join(self.cards)}: it arises on {ranks}{at}. "
            "They were exchanged, which can't tell them apart: move three cards round instead"
        )


def judge_cards(ref: Capture, cand: Capture) -> Cards | None:
    """Say whether what differs between two runs of the same candidate moves with a card.

    Args:
        ref: one run.
        cand: the other, of as many ranks.

    Returns:
        None where that can't be asked: the runs have one rank, or not the same cards, or no rank moved.
    """
    if ref.ranks != cand.ranks or len(ref.ranks) < 2:
        return None
    before, after = _placed(ref.manifest), _placed(cand.manifest)
    ranks = [rank for rank in ref.ranks if rank in before and rank in after]
    moved = [rank for rank in ranks if before[rank] != after[rank]]
    if ranks != list(ref.ranks) or not moved or set(before.values()) != set(after.values()):
        return None
    firsts = {rank: _first_difference(ref.rank(rank), cand.rank(rank)) for rank in ranks}
    differing = {rank: first for rank, first in firsts.items() if first is not None}
    if not differing:
        return Cards(culprit=Culprit.NEITHER)
    arising = {rank: first.where for rank, first in differing.items() if first.is_own}
    if not arising:
        return Cards(culprit=Culprit.UNCLEAR, ranks=tuple(sorted(differing)))
    guilty = []
    for card in dict.fromkeys([*before.values(), *after.values()]):
        # On a card that it sits on in both runs, a rank computes the same wrong values twice.
        changing = {rank for rank in ranks if (before[rank] == card) != (after[rank] == card)}
        if changing == set(arising):
            guilty.append(card)
    found = tuple(sorted(arising))
    where = arising[found[0]]
    if guilty:
        return Cards(culprit=Culprit.CARD, cards=tuple(guilty), ranks=found, where=where)
    # What a rank received may hide that it computes wrong as well, unless it had done so by then.
    others_are_right = all(
        first is None or where in first.passed for rank, first in firsts.items() if rank not in arising
    )
    culprit = Culprit.RANK if len(found) == 1 and others_are_right else Culprit.UNCLEAR
    return Cards(culprit=culprit, ranks=found, where=where)


def _placed(manifest: Manifest) -> dict[int, str]:
    """Return the identity of the card that each rank sat on, as far as the metadata has it."""
    hardware = manifest.run.get("hardware")
    placed = {}
    for described in hardware if isinstance(hardware, list) else ():
        if isinstance(described, Mapping) and isinstance(described.get("rank"), int):
            placed[described["rank"]] = _identity(described)
    return placed


def _identity(described: Mapping[str, Any]) -> str:
    devices = described.get("devices")
    host = f"host {described.get('host')}"
    if not isinstance(devices, list) or not devices or not isinstance(devices[0], Mapping):
        return f"the processor of {host}"
    device = devices[0]
    if device.get("uuid"):
        return f"{device.get('type')} {device['uuid']}"
    return f"{device.get('type')} {device.get('pci') or device.get('index')} of {host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """The first tensor of a rank that differs.

    Attributes:
        is_own: whether the rank computed it, rather than received it.
        passed: the places at which what it computed before did not differ.
    """

    where: str
    is_own: bool
    passed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """Tensors that a rank had at one moment.

    Attributes:
        is_own: whether it computed them; another rank may have sent them.
        is_result: whether `where` made them.
    """

    moment: int
    where: str
    is_own: bool
    is_result: bool
    tensors: Mapping[str, str]


def _first_difference(ref: RankCapture, cand: RankCapture) -> _Difference | None:
    for name, parameter in ref.parameters.items():
        other = cand.parameters.get(name)
        if other is None or other.ref.meta.checksum != parameter.ref.meta.checksum:
            return _Difference(where=name, is_own=True)
    # The same program makes the same events; the first without a partner is a difference.
    ours, theirs = sorted(_events(ref), key=_order), sorted(_events(cand), key=_order)
    passed: set[str] = set()
    for mine, other_one in zip(ours, theirs, strict=False):
        if mine.where != other_one.where or mine.tensors != other_one.tensors:
            return _Difference(where=mine.where, is_own=mine.is_own, passed=frozenset(passed))
        passed |= {mine.where} if mine.is_result else set()
    return None if len(ours) == len(theirs) else _Difference(where="", is_own=True)


def _events(capture: RankCapture) -> Iterator[_Event]:
    for call in capture.calls:
        where = call.module or "the model"
        yield _Event(
            moment=call.start, where=where, is_own=True, is_result=False, tensors=_checksums(call.inputs)
        )
        if call.end is not None:
            yield _Event(
                moment=call.end, where=where, is_own=True, is_result=True, tensors=_checksums(call.outputs)
            )
    modules = {call.id: call.module for call in capture.calls}
    for collective in capture.collectives:
        where = f"{collective.op} in {modules.get(collective.call or 0) or 'the model'}"
        for tensors, is_own in ((collective.entered, True), (collective.left, False)):
            named = {str(index): tensor for index, tensor in enumerate(tensors)}
            yield _Event(
                moment=collective.start,
                where=where,
                is_own=is_own,
                is_result=is_own,
                tensors=_checksums(named),
            )


def _checksums(values: Mapping[str, Any]) -> dict[str, str]:
    return {path: value.meta.checksum for path, value in values.items() if isinstance(value, TensorRef)}


def _order(event: _Event) -> tuple[int, bool]:
    # What enters a collective comes before what leaves it.
    return event.moment, not event.is_own

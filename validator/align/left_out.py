"""Modules of the reference whose partners a user chose not to look at."""

from collections.abc import Callable, Collection

from validator.align.naming import Named
from validator.align.traces import LeftOut
from validator.capturing.records import RankCapture
from validator.capturing.selection import Selection

__all__ = ["find_left_out"]


def find_left_out(
    *,
    ref: RankCapture,
    named: Named,
    own: Callable[[str, int], str],
    selection: Selection,
) -> LeftOut:
    """Return the modules of the reference that the candidate's capture was not to hold.

    A module without a partner, as those inside of what the candidate computes in one piece, is left out where
    the module that it lies in was, or where a module that was left out there is nobody else's partner.

    Args:
        ref: the reference's capture.
        named: the candidate's captures, in the reference's names.
        own: what the candidate itself calls a module of `named` on a rank.
        selection: what its capture was to hold.
    """
    if selection.is_whole:
        return LeftOut()
    partners: dict[str, bool] = {}
    others: set[str] = set()
    for capture in named.captures:
        for name in capture.modules:
            is_kept = selection.keeps_module(own(name, capture.rank))
            new = named.rename(name)
            if new is not None:
                partners[new] = partners.get(new, False) or is_kept
            elif not is_kept:
                others.update(_around(name, named))
    ran = {call.module for call in ref.calls} | {name.rpartition(".")[0] for name in ref.parameters}
    found = {name: _is_left_out(name, partners, others) for name in ref.modules if name in ran}
    modules = tuple(name for name, is_left_out in found.items() if is_left_out)
    return LeftOut(modules=modules, options=selection.options if modules else "")


def _around(name: str, named: Named) -> list[str]:
    """Return the reference's name of the innermost module with a partner that a module lies in, if any."""
    while name:
        name = name.rpartition(".")[0]
        new = named.rename(name)
        if new is not None:
            return [new]
    return []


def _is_left_out(name: str, partners: dict[str, bool], others: Collection[str]) -> bool:
    if name in partners:
        return not partners[name]
    while name:
        name = name.rpartition(".")[0]
        if name in partners:
            return not partners[name] or name in others
    return False

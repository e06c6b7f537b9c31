"""What is known of the modules that a user chose not to look at."""

from collections.abc import Container

from torch import nn

from validator.align.traces import LeftOut

__all__ = ["said_of_choice"]

_SHOWN = 3


def said_of_choice(
    reference: nn.Module, left_out: LeftOut, judged: Container[str]
) -> tuple[list[str], list[str]]:
    """Say what was left out by choice: as a reason why nothing found proves nothing, or as a note.

    Args:
        reference: the trusted model.
        left_out: what was left out.
        judged: modules that a check judged, through the code of their callers as well.

    Returns:
        Reasons, where the model's output or a module with parameters was judged by nothing; and notes, where
        those that call the modules were judged with them.
    """
    if not left_out.modules:
        return [], []
    unjudged = [
        name
        for name in left_out.modules
        if name not in judged
        and (not name or next(reference.get_submodule(name).parameters(recurse=False), None) is not None)
    ]
    if not unjudged:
        within = "it was judged as part of what calls it"
        if len(left_out.modules) > 1:
            within = "they were judged as part of what calls them"
        return [], [f"{left_out.told()}: {within}"]
    is_any_judged = any(name in judged for name in left_out.modules)
    named = [name or "the model's output" for name in unjudged]
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    what = f"{', '.join(named[:_SHOWN])}{more}" if is_any_judged else "them"
    what = "it" if len(left_out.modules) == 1 else what
    return [f"{left_out.told()}: no check judged {what}"], []

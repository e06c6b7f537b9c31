"""Which module of a candidate in this process is which of the reference."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from validator.align.names import map_modules
from validator.align.naming import name_captures
from validator.align.patterns import Patterns
from validator.capturing.reader import open_capture
from validator.capturing.session import capture_run

__all__ = ["module_names"]

_ENOUGH = 0.5
"""Where names match fewer modules than this share of the smaller model, structure and values are asked."""


def module_names(
    *,
    ref: nn.Module,
    cand: nn.Module,
    patterns: Mapping[str, str],
    run_ref: Callable[[], Any],
    run_cand: Callable[[], Any],
) -> dict[str, str]:
    """Return the reference's name of each module of the candidate that is one of the reference's.

    By the target's patterns and by names; where these match little, by structure and values too, for which
    both run once. Modules that one side has fused are left out.

    Raises:
        MismatchError: the models share nothing, or `names` contradicts them.
    """
    ours = [name for name, _ in ref.named_modules()]
    theirs = [name for name, _ in cand.named_modules()]
    read = Patterns(patterns)
    names = map_modules(cand=theirs, ref=ours, patterns=read)
    if len(names) >= _ENOUGH * min(len(ours), len(theirs)):
        return names
    with tempfile.TemporaryDirectory(prefix="validator-") as folder:
        captures = []
        for side, model, run in (("reference", ref, run_ref), ("candidate", cand, run_cand)):
            path = Path(folder) / f"{side}.h5"
            capture_run(run, model, path, proof=False)
            captures.append(open_capture(path).rank(0))
        named = name_captures(ref=captures[0], cand=[captures[1]], patterns=read)
        made = set(named.owners)
        return {
            own: new
            for own, new in named.modules.items()
            if own in theirs and new in ours and own not in made
        }

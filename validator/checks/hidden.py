"""Faults inside of a compiled region, and whether they would have shown where it is judged: at its outside.

A compiled region is judged as one function, by a band that the rounding of all its operators makes. The
deeper it is, the wider is that band, and in the end it explains everything. So each of its modules is given a
fault in turn, and the rules are asked what they say of such a candidate (NUMERICS section 5, point 5). A
region where a gross fault would pass proves nothing, and is too deep.

The gross fault is that half of a module's channels are missing, the slight one makes the same channels 1% too
large. It is some of them and not all, since a norm that follows takes a common factor back. Both sizes are
chosen and not derived; half is what one of two ranks holds. A region that is not too deep would have shown
such a loss in each of its modules. A smaller one, of one of eight ranks or of a single head, is not tried and
may go unseen in a region that is aligned: smaller regions show smaller losses.

A candidate with the gross fault is a noisy run of the reference's code under the loosest recipe that is
allowed: where noise fills everything, a fault changes which noise there is, and not how much. One with the
slight fault is the candidate itself, with what that moves added to its values.

Shape legend: * = the edge's shape.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from validator.align.traces import TraceCall
from validator.checks.findings import Unchecked, Unobservable
from validator.checks.module_code import Code, Key
from validator.checks.observability import FACTOR
from validator.checks.resolution import Resolution
from validator.numerics.recipes import Recipe

__all__ = ["Hidden", "look_behind", "unwrapped"]

MISSING = 0.0
"""What half of a module's channels are multiplied by in the gross fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """What would not have shown of faults in the modules of one compiled region.

    Attributes:
        region: the region's call.
        modules: fqns of the modules inside that have parameters, in the order of their calls.
        gross: those in which half of the channels may be missing unseen.
        slight: the others in which half of the channels may be 1% too large unseen.
    """

    region: TraceCall
    modules: tuple[str, ...]
    gross: tuple[str, ...]
    slight: tuple[str, ...]

    @property
    def gap(self) -> Unchecked | None:
        """What says that the region is too deep, or None where it is not."""
        if not self.gross:
            return None
        return Unchecked(
            module=self.region.module,
            why=f"its compiled region is too deep to be judged as one function: rounding explains so much of "
            f"what leaves it that half of the channels of {_named(self.gross)} could be missing (tried on "
            f"{len(self.modules)} modules inside). Compile its blocks one by one, or check it without "
            "torch.compile",
        )

    @property
    def unobservable(self) -> Unobservable | None:
        """What says of slight faults that they would not show, or None where they would."""
        if not self.slight:
            return None
        return Unobservable(
            module=self.region.module,
            what=f"half of the channels x{FACTOR:g} in {len(self.slight)} of the {len(self.modules)} modules "
            f"inside of the compiled region ({_named(self.slight, show=1)})",
            why="only what leaves the region is judged, and rounding explains more there",
            propose="smaller compiled regions, or a run without torch.compile",
        )


def look_behind(code: Code, resolutions: Mapping[Key, Resolution], loosest: Recipe) -> Hidden | None:
    """Try what faults in the modules of a compiled region would show; None where it hides none.

    Args:
        code: of the region; all its edges were judged and are aligned.
        resolutions: of its edges with arithmetic behind them.
        loosest: of the recipes that are allowed.
    """
    modules = tuple(x for x in dict.fromkeys(code.inlined) if _bears_parameters(code, x))
    if not modules or code.replays is None:
        return None
    gross = [module for module in modules if not _shows_gross(code, resolutions, module, loosest)]
    rest = [module for module in modules if module not in gross]
    slight = [module for module in rest if not _shows_slight(code, resolutions, module)]
    return Hidden(region=code.call, modules=modules, gross=tuple(gross), slight=tuple(slight))


def unwrapped(name: str) -> str:
    """Return the name of a region of the candidate, of what torch.compile wrapped that of its wrapper."""
    parts = name.split(".")
    while parts and parts[-1] == "_orig_mod":
        parts.pop()
    return ".".join(parts)


def _shows_gross(code: Code, resolutions: Mapping[Key, Resolution], module: str, loosest: Recipe) -> bool:
    assert code.replays is not None
    made = code.replays.spoilt(module, MISSING, loosest)
    return not made or any(
        resolutions[edge.key].shows(made[edge.key])
        if edge.key in resolutions
        else bool((made[edge.key] != edge.exact).any())
        for edge in code.edges
        if edge.key in made
    )


def _shows_slight(code: Code, resolutions: Mapping[Key, Resolution], module: str) -> bool:
    assert code.replays is not None
    made = code.replays.spoilt(module, FACTOR)
    for edge in code.edges:
        if edge.key in made and edge.key in resolutions:
            resolution = resolutions[edge.key]
            if resolution.shows(resolution.before() + made[edge.key] - edge.exact):
                return True
    return not made


def _bears_parameters(code: Code, fqn: str) -> bool:
    prefix = f"{code.call.module}." if code.call.module else ""
    try:
        module: nn.Module = code.module.get_submodule(fqn.removeprefix(prefix))
    except AttributeError:  # it is called, and held elsewhere
        return False
    return next(module.parameters(recurse=False), None) is not None


def _named(modules: tuple[str, ...], show: int = 2) -> str:
    more = f" and {len(modules) - show} more" if len(modules) > show else ""
    return f"{', '.join(modules[:show])}{more}"

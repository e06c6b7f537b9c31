"""Models of which some modules are the candidate's and the rest the reference's, both in this process.

A module whose side is not that of the code around it keeps its object, which that code may read weights from,
and has its forward replaced by a call of the other side's module. Inside, the same holds the other way round.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from validator.errors import MismatchError
from validator.swapping.boundaries import (
    UnswappableError,
    check_swappable,
    translated_arguments,
    translated_output,
)
from validator.swapping.calls import Call, record_calls
from validator.swapping.partition import Part, sides_of
from validator.wrapping import replaced

__all__ = ["Hybrids"]


class Hybrids:
    """Makes hybrids of two models.

    Each model runs once, to learn how it calls its modules.

    Args:
        ref: the reference.
        cand: the candidate.
        names: the reference's name of each of the candidate's modules that has one.
        run_ref: runs the reference.
        run_cand: runs the candidate.

    Attributes:
        swappable: fqns, in the reference's names, of the modules that either side can compute, outer ones
            first.
        unswappable: why another that both sides have is none of them, by name.

    Raises:
        MismatchError: the two share a module object, so that there is nothing to swap.
    """

    def __init__(
        self,
        *,
        ref: nn.Module,
        cand: nn.Module,
        names: Mapping[str, str],
        run_ref: Callable[[], Any],
        run_cand: Callable[[], Any],
    ) -> None:
        self._models = ref, cand
        self._parents = _parents(ref), _parents(cand)
        theirs = {new: own for own, new in names.items()}
        both = [name for name, _ in ref.named_modules() if name and name in theirs]
        ours, others = dict(ref.named_modules()), dict(cand.named_modules())
        self._modules = (
            {name: ours[name] for name in both},
            {name: others[theirs[name]] for name in both},
        )
        _demand_apart(ref, cand)
        self._calls = (
            record_calls(self._modules[0], run_ref),
            record_calls(self._modules[1], run_cand),
        )
        self.unswappable: dict[str, str] = {}
        self.swappable: list[str] = []
        for name in both:
            why = self._why_not(name)
            if why is None:
                self.swappable.append(name)
            elif why:
                self.unswappable[name] = why

    @contextmanager
    def hybrid(self, parts: Collection[Part], chosen: Collection[Part]) -> Iterator[tuple[nn.Module, bool]]:
        """Give a model in which the candidate computes some parts, and the reference all else.

        Both models are as they were afterwards. What looks for modules by their objects finds those of the
        side whose code is outermost.

        Args:
            parts: what is told apart; their modules are `swappable`.
            chosen: those of them that are the candidate's.

        Yields:
            The outermost module, and whether it is the candidate's.

        Raises:
            MismatchError: when the model runs: a module is called in a way that has no counterpart.
        """
        sides = sides_of(["", *self.swappable], {part: part in chosen for part in parts})
        bridges: dict[str, _Bridge] = {}
        with ExitStack() as stack:
            for name in self.swappable:
                side = sides[name]
                around = name.rpartition(".")[0]
                while around not in sides:
                    around = around.rpartition(".")[0]
                if side == sides[around]:
                    continue
                outside = self._modules[not side][name]
                bridges[name] = _Bridge(
                    name=name,
                    outside=outside,
                    inside=self._modules[side][name],
                    wanted=self._calls[not side][name],
                    own=self._calls[side][name],
                )
                stack.enter_context(_forward(outside, bridges[name]))
            yield self._models[sides[""]], sides[""]
        silent = [name for name, bridge in bridges.items() if not bridge.count]
        if silent:
            raise MismatchError(
                f"{silent[0]} was put in place of the other side's, and was never called: the code around "
                "it may be compiled. Compare models that are not compiled, or use --options"
            )

    def _why_not(self, name: str) -> str | None:
        """Return why a module can't be swapped, `""` where that needs no word, None where it can be."""
        ref, cand = (calls[name] for calls in self._calls)
        if not ref or not cand:
            return ""  # a container, or one that this run does not reach
        if any(parents[module] > 1 for parents, module in zip(self._parents, self._both(name), strict=True)):
            return "it stands in several places"
        if len(ref) != len(cand):
            return f"the reference calls it {_times(len(ref))} and the candidate {_times(len(cand))}"
        try:
            for one, other in zip(ref, cand, strict=True):
                check_swappable(one, other)
        except UnswappableError as error:
            return f"it {error}"
        return None

    def _both(self, name: str) -> tuple[nn.Module, nn.Module]:
        return self._modules[0][name], self._modules[1][name]


class _Bridge:
    """A forward that calls the other side's module."""

    def __init__(
        self, *, name: str, outside: nn.Module, inside: nn.Module, wanted: list[Call], own: list[Call]
    ) -> None:
        self.count = 0
        self._name = name
        self._outside = outside
        self._inside = inside
        self._wanted = wanted
        self._own = own

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # A run that takes another way than the recorded ones may call a module more often.
        own = self._own[min(self.count, len(self._own) - 1)]
        wanted = self._wanted[min(self.count, len(self._wanted) - 1)]
        self.count += 1
        try:
            positional, named = translated_arguments(self._outside, args, kwargs, own)
            return translated_output(self._inside(*positional, **named), wanted)
        except UnswappableError as error:
            raise MismatchError(
                f"{self._name} can't be swapped in call {self.count - 1}: it {error}. Leave it out "
                "with --module"
            ) from None


@contextmanager
def _forward(module: nn.Module, bridge: _Bridge) -> Iterator[None]:
    """Replace a module's forward; afterwards the class's own is found again if it was before."""
    if "forward" in vars(module):
        with replaced(module, "forward", bridge):
            yield
        return
    module.forward = bridge
    try:
        yield
    finally:
        del module.forward


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _parents(model: nn.Module) -> dict[nn.Module, int]:
    """Return in how many places each module stands."""
    places: dict[nn.Module, int] = {}
    for _, module in model.named_modules(remove_duplicate=False):
        places[module] = places.get(module, 0) + 1
    return places


def _demand_apart(ref: nn.Module, cand: nn.Module) -> None:
    ours = set(ref.modules())
    shared = next((name for name, module in cand.named_modules() if module in ours), None)
    if shared is not None:
        raise MismatchError(
            f"reference() and candidate() return models that share an object, {shared or 'the model'!r}: "
            "there is nothing to swap. Build each from scratch"
        )

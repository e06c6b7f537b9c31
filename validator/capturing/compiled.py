"""Compiled regions of a model: what torch.compile made one piece of code of, which nobody looks into.

A hook inside a region changes the code that is compiled, and with it most bits of what it computes. So
a region is seen from outside alone: what enters its outermost module, and what leaves it.

torch.compile makes regions in three ways. `torch.compile(module)` returns a wrapper, whose own hooks are
outside of the compiled code; what it wraps is seen as called inside of it. `module.compile()` compiles the
call with the module's hooks in it, so the call is wrapped in their place.
`module.forward = torch.compile(module.forward)`, or a class that declares its forward so, leaves the
module's own hooks outside.
"""

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from torch import nn

from validator.errors import TargetError

__all__ = ["CompiledRegion", "Entry", "enter_region", "find_regions", "require_uncompiled", "seen_through"]


class Entry(StrEnum):
    """What of a region's outermost module is compiled."""

    WRAPPER = "wrapper"
    CALL = "call"
    FORWARD = "forward"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledRegion:
    """A compiled region that no other encloses.

    Attributes:
        fqn: of its outermost module.
        module: that module.
        entry: what of it is compiled.
        hidden: names of the modules inside, which can't be looked at.
        inside: names of the modules whose own hooks would run inside.
    """

    fqn: str
    module: nn.Module
    entry: Entry
    hidden: tuple[str, ...]
    inside: tuple[str, ...]

    @property
    def has_hooks_outside(self) -> bool:
        """Whether the module's own hooks run outside of the compiled code."""
        return self.entry is not Entry.CALL


def find_regions(modules: Mapping[str, nn.Module]) -> tuple[CompiledRegion, ...]:
    """Return the outermost compiled regions of a model.

    Args:
        modules: the model's modules by name, each after those that hold it.
    """
    found: dict[str, CompiledRegion] = {}
    for fqn, module in modules.items():
        if any(fqn.startswith(_prefix(outer)) for outer in found if fqn != outer):
            continue
        entry = _entry(module)
        if entry is not None:
            seen = {id(one) for one in (module, *_wrapped(module))}
            below = [name for name in modules if name != fqn and name.startswith(_prefix(fqn))]
            found[fqn] = CompiledRegion(
                fqn=fqn,
                module=module,
                entry=entry,
                hidden=tuple(name for name in below if id(modules[name]) not in seen),
                inside=(*([fqn] if entry is Entry.CALL else []), *below),
            )
    return tuple(found.values())


def enter_region(
    region: CompiledRegion,
    *,
    before: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None],
    after: Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], None],
) -> Callable[[], None]:
    """Watch a region's calls from outside, and keep our own dispatch modes out of it.

    Where a dispatch mode is on, compiled code gives way to eager code for good.

    Args:
        region: the region.
        before: called with module, args and kwargs before each call of a module that has no hooks outside:
            the region's own, or what that wraps.
        after: called after it, also with the output, or None where the call raised.

    Returns:
        What takes all of it back.
    """
    module = region.module
    name = "forward" if region.has_hooks_outside else "_compiled_call_impl"
    was_own = name in vars(module)
    called = seen_through(module)
    original = getattr(module, name)

    def alone(*args: Any, **kwargs: Any) -> Any:
        with _modes_off():
            return original(*args, **kwargs)

    def watched(*args: Any, **kwargs: Any) -> Any:
        before(called, args, kwargs)
        try:
            output = alone(*args, **kwargs)
        except BaseException:
            after(called, args, kwargs, None)
            raise
        after(called, args, kwargs, output)
        return output

    def leave() -> None:
        if was_own:
            setattr(module, name, original)
        else:
            delattr(module, name)

    setattr(module, name, alone if region.entry is Entry.FORWARD else watched)
    return leave


def require_uncompiled(reference: nn.Module, name: str) -> None:
    """Raise `TargetError` if a part of the reference is compiled.

    Args:
        reference: the trusted model.
        name: what a message calls it, such as `"the reference"`.
    """
    regions = find_regions(dict(reference.named_modules()))
    if regions:
        fqn = regions[0].fqn or "the model itself"
        more = f" and {len(regions) - 1} more" if len(regions) > 1 else ""
        raise TargetError(
            f"{name} is compiled ({fqn}{more}), and the oracle is made of it: each of its modules runs by "
            "itself in float64, which compiled code can't. Give it as it was before torch.compile; only the "
            "candidate may be compiled"
        )


def seen_through(module: nn.Module) -> nn.Module:
    """Return the module that torch.compile wrapped, or the module itself."""
    return ([module, *_wrapped(module)])[-1]


def _entry(module: nn.Module) -> Entry | None:
    if _is_wrapper(module):
        return Entry.WRAPPER if _compiles(vars(module).get("forward")) else None
    if module._compiled_call_impl is not None:
        return Entry.CALL
    return Entry.FORWARD if _compiles(module.forward) else None


def _wrapped(module: nn.Module) -> list[nn.Module]:
    """Return what a wrapper wraps, wrappers in wrappers from the outside in; nothing of another module."""
    found: list[nn.Module] = []
    while _is_wrapper(module):
        module = module._modules["_orig_mod"]  # type: ignore[assignment]
        found.append(module)
    return found


def _is_wrapper(module: nn.Module) -> bool:
    # Without this import no module can be one, and the import takes a second.
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return frames is not None and isinstance(module, frames.OptimizedModule)


def _compiles(function: object) -> bool:
    # torch.compiler.disable marks what it wraps in the same way, and says so besides.
    return hasattr(function, "_torchdynamo_orig_callable") and not hasattr(function, "_torchdynamo_disable")


def _prefix(fqn: str) -> str:
    return f"{fqn}." if fqn else ""


def _modes_off() -> AbstractContextManager[Any]:
    """Switch our dispatch modes off; one of somebody else's is part of the run, with hooks or without."""
    from torch.utils import _python_dispatch as dispatch

    modes: list[Any] = dispatch._get_current_dispatch_mode_stack()
    if not modes or not all(type(mode).__module__.startswith("validator.") for mode in modes):
        return nullcontext()
    return dispatch._disable_current_modes()

"""Which modules, calls and ranks a capture keeps."""

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from validator.errors import CaptureError

__all__ = ["Selection"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What to keep of a run.

    Attributes:
        include: globs over modules' fqns, in which `*` matches dots too; empty for every module.
        exclude: globs of modules to leave out, also where they are included.
        calls: numbers of each module's calls to keep, or None for all.
        ranks: ranks to record, or None for all.
        operators: globs of modules whose operators are kept as well; empty for none.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    calls: Collection[int] | None = None
    ranks: Collection[int] | None = None
    operators: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        include: str | Sequence[str] | None,
        exclude: str | Sequence[str] | None,
        calls: Collection[int] | None,
        ranks: Collection[int] | None,
        operators: str | Sequence[str] | None = None,
    ) -> "Selection":
        """Return the selection that a user's arguments ask for."""
        return cls(
            include=_globs(include),
            exclude=_globs(exclude),
            calls=calls,
            ranks=ranks,
            operators=_globs(operators),
        )

    @property
    def is_whole(self) -> bool:
        """Whether every module is kept."""
        return not self.include and not self.exclude

    @property
    def options(self) -> str:
        """What chose the modules, as on the command line; nothing where every module is kept."""
        named = (("--include", self.include), ("--exclude", self.exclude))
        return " ".join(f"{option} {shlex.quote(glob)}" for option, globs in named for glob in globs)

    def keeps_module(self, fqn: str) -> bool:
        """Say whether a module is kept."""
        return self._includes(fqn) and not self._excludes(fqn)

    def keeps_parameters(self, fqn: str, *, region: str | None = None) -> bool:
        """Say whether what a module owns is kept; `region` is the compiled region that it is in."""
        included = self._includes(fqn) or (region is not None and self.keeps_module(region))
        return included and not self._excludes(fqn)

    def _includes(self, fqn: str) -> bool:
        return not self.include or any(fnmatchcase(fqn, glob) for glob in self.include)

    def _excludes(self, fqn: str) -> bool:
        return any(fnmatchcase(fqn, glob) for glob in self.exclude)

    def keeps_call(self, n: int) -> bool:
        """Say whether the n-th call of a module is kept."""
        return self.calls is None or n in self.calls

    def keeps_operators(self, fqn: str) -> bool:
        """Say whether the operators of a module that is kept are kept as well."""
        return any(fnmatchcase(fqn, glob) for glob in self.operators)

    def keeps_rank(self, rank: int) -> bool:
        """Say whether a rank is recorded."""
        return self.ranks is None or rank in self.ranks

    def check_names(self, fqns: Collection[str]) -> None:
        """Raise `CaptureError` for a glob that matches none of the model's modules, on any rank."""
        missing = _unmatched(self.include + self.exclude + self.operators, fqns)
        if missing:
            raise CaptureError(
                f"{missing} matches no module of this model. Patterns are globs over names such as "
                "'model.layers.0.mlp'; model.named_modules() lists them."
            )

    def check_fired(self, fqns: Collection[str], compiled: Collection[str] = ()) -> None:
        """Raise `CaptureError` for a glob of what to keep that matches no module that fired, on any rank.

        Args:
            fqns: modules that fired.
            compiled: outermost modules of compiled regions; those inside are not looked at.
        """
        missing = _unmatched(self.include + self.operators, fqns)
        if missing and compiled:
            regions = ", ".join(repr(fqn) if fqn else "the model itself" for fqn in list(compiled)[:3])
            raise CaptureError(
                f"{missing} matches no module that fired and can be looked at: what is inside of a compiled "
                f"region can't be, and {regions} {'is' if len(compiled) == 1 else 'are'} compiled. Give a "
                "pattern for the region itself, or run the model without torch.compile."
            )
        if missing:
            raise CaptureError(
                f"{missing} matches no module that fired: the run called none of them. Give a pattern for "
                "modules that run (containers such as ModuleList never do), or run with other inputs."
            )


def _unmatched(globs: Sequence[str], fqns: Collection[str]) -> str:
    return ", ".join(repr(g) for g in globs if not any(fnmatchcase(fqn, g) for fqn in fqns))


def _globs(value: str | Sequence[str] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)

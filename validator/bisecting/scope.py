"""What a search is about: which of the reference's modules, and which of its blocks."""

from collections.abc import Sequence
from dataclasses import dataclass

from validator.bisecting.survey import Survey
from validator.capturing.outline import is_below

__all__ = ["FEWEST_BLOCKS", "Scope"]

FEWEST_BLOCKS = 3
"""With fewer, the first look into them covers as much as what their boundaries could point at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The part of the reference's run that is searched.

    Attributes:
        survey: of that run.
        within: fqn of the module that the search is limited to; `""` for the whole model.
    """

    survey: Survey
    within: str = ""

    @property
    def blocks(self) -> tuple[str, ...]:
        """The blocks, in execution order."""
        return tuple(b for b in self.survey.blocks if is_below(b, self.within) or is_below(self.within, b))

    @property
    def frame(self) -> tuple[str, ...]:
        """The modules that lie in no block."""
        return tuple(fqn for fqn in self.survey.frame if is_below(fqn, self.within))

    @property
    def has_many_blocks(self) -> bool:
        """Whether it pays to ask which block to begin with."""
        return len(self.blocks) >= FEWEST_BLOCKS

    def top(self, block: str) -> str:
        """Return what is captured of a block: all of it, or the module that the search is limited to."""
        return self.within if self.within and is_below(self.within, block) else block

    def inside(self, blocks: Sequence[str]) -> tuple[str, ...]:
        """Return the modules of some blocks."""
        return tuple(fqn for fqn in self.survey.inside(blocks) if is_below(fqn, self.within))

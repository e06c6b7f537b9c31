"""Whether the modules that a recipe gives scales of a cache attend to anything."""

from dataclasses import dataclass
from typing import Self

from torch import nn

from validator.checks.cache_reads import attends
from validator.checks.module_code import Code
from validator.errors import UsageError
from validator.numerics.cache_scales import CacheScale
from validator.numerics.recipes import Recipe

__all__ = ["DeclaredCaches"]

_LATENT = "kv_lora_rank"
"""Attribute of modules that make keys and values of latents, by the convention of transformers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredCaches:
    """Holds a recipe's `CacheScale`s to the code of the modules that they name.

    Attributes:
        recipe: whose they are.
        pending: the modules of each that were not seen yet, as long as none was seen that attends.
        latent: modules that make keys and values of latents, as multi-head latent attention does.
    """

    recipe: Recipe
    pending: dict[CacheScale, set[str]]
    latent: tuple[str, ...]

    @classmethod
    def of(cls, recipe: Recipe, reference: nn.Module) -> Self:
        """Find the modules that each names.

        Raises:
            UsageError: a glob matches no module.
        """
        scales = recipe.cache_scale if isinstance(recipe.cache_scale, tuple) else ()
        modules = dict(reference.named_modules())
        pending = {}
        for scale in scales:
            matched = [name for name in modules if scale.holds_for(name)]
            if not matched:
                raise UsageError(
                    f"CacheScale(module={scale.module!r}) of the recipe {recipe.name!r} matches no module of "
                    "the reference: name those that attend, as the reference does "
                    f"(one of its modules is {list(modules)[-1]!r})"
                )
            # A container is never called.
            called = {name for name in matched if type(modules[name]).forward is not nn.Module.forward}
            pending[scale] = called
            if not called:
                raise _attends_to_nothing(scale, recipe, matched)
        latent = [
            name
            for name, module in modules.items()
            if recipe.cache_scale_of(name) is not None and getattr(module, _LATENT, None)
        ]
        return cls(recipe=recipe, pending=pending, latent=tuple(latent))

    @property
    def notes(self) -> tuple[str, ...]:
        """What can't be declared, where a reader may believe that it is."""
        if not self.latent:
            return ()
        return (
            f"{self.latent[0]} makes keys and values of latents: what recipe {self.recipe.name!r} says of "
            "the cache is taken to be of the keys and values. A cache of latents can't be declared: judge a "
            "run that keeps them as they were computed",
        )

    def saw(self, code: Code) -> None:
        """Take note of a module's code.

        Raises:
            UsageError: no module that a glob matches attends to anything.
        """
        modules = {code.call.module, *code.inlined}
        for scale, names in list(self.pending.items()):
            if not any(scale.holds_for(module) for module in modules):
                continue
            if attends(code):
                del self.pending[scale]
                continue
            names -= modules
            if not names:
                raise _attends_to_nothing(scale, self.recipe, [code.call.module])


def _attends_to_nothing(scale: CacheScale, recipe: Recipe, matched: list[str]) -> UsageError:
    return UsageError(
        f"CacheScale(module={scale.module!r}) of the recipe {recipe.name!r} matches no module that attends "
        f"({matched[-1]!r} does not): name those in whose code queries meet keys"
    )

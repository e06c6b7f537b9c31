"""Names of a model's modules: one that is reached in several ways has several, and each call gets one."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

__all__ = ["NameDealer", "Scope"]


@dataclass(slots=True)
class Scope:
    """A running call, below whose name those of its children are dealt. Each call needs its own.

    Attributes:
        fqn: of the module that is called; the scope of calls that no other encloses has the model's, `""`.
        dealt: how many calls there were so far inside this one, by identity of the module.
    """

    fqn: str = ""
    dealt: Counter[int] = field(default_factory=Counter)


class NameDealer:
    """Deals a module's names out to its calls.

    Args:
        model: names are those seen from it.

    Attributes:
        modules: the module of each name, in the order of `named_modules`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.modules: Mapping[str, nn.Module] = dict(model.named_modules(remove_duplicate=False))
        self._names: dict[int, list[str]] = defaultdict(list)
        for fqn, module in self.modules.items():
            self._names[id(module)].append(fqn)

    def name(self, module: nn.Module, scope: Scope) -> str:
        """Return the name for the next call of `module` inside `scope`, and take it as dealt.

        Of several names those below the scope's come in turn, in the order of `named_modules`; where there is
        none below, all do.
        """
        names = self._names[id(module)]
        if len(names) == 1:
            return names[0]
        prefix = f"{scope.fqn}." if scope.fqn else ""
        names = [name for name in names if name.startswith(prefix)] or names
        turn = scope.dealt[id(module)]
        scope.dealt[id(module)] += 1
        return names[turn % len(names)]

"""The parts of a decoder that faults are planted in, found by structure and not by class."""

from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from validator.errors import UsageError

__all__ = ["Decoder", "bias_of", "local"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A causal language model laid out as Llama is in transformers.

    Attributes:
        model: all of it, with the head.
        body: its part that holds `embed_tokens` and `layers`.
    """

    model: Any
    body: Any

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """Find the decoder in a model.

        Raises:
            UsageError: there is none.
        """
        for module in model.modules():
            if hasattr(module, "embed_tokens") and isinstance(getattr(module, "layers", None), nn.ModuleList):
                return cls(model=model, body=module)
        raise UsageError(
            f"no fault can be planted in {type(model).__name__}: none of its modules has both "
            "`embed_tokens` and a ModuleList `layers`, as Llama-like decoders of transformers have"
        )

    def layer(self, index: int) -> Any:
        """Return a decoder layer.

        Raises:
            UsageError: there are fewer.
        """
        count = len(self.body.layers)
        if index >= count:
            raise UsageError(
                f"layer={index} is not in {type(self.model).__name__}: "
                f"it has {count} layers, 0 to {count - 1}"
            )
        return self.body.layers[index]

    def has(self, path: str, layer: int | None) -> bool:
        """Tell whether a part is there and not None.

        Args:
            path: attributes from `model`, `body` or `layer` on, such as `layer.self_attn.scaling`.
            layer: index of the layer that `layer` means.
        """
        root, *names = path.split(".")
        part = self.layer(layer) if root == "layer" and layer is not None else getattr(self, root)
        for name in names:
            part = getattr(part, name, None)
        return part is not None


def local(parameter: Tensor) -> Tensor:
    """Return this rank's part of a parameter, which changes with it."""
    data = parameter.detach()
    return data.to_local() if isinstance(data, DTensor) else data


def bias_of(projection: Any) -> Tensor | None:
    """Return this rank's part of a projection's bias, or None where it has none."""
    return None if projection.bias is None else local(projection.bias)

"""What each dim of a tensor stands for: batch, token, head, channel or expert, told from its sizes.

Shape legend: B = batch, S = tokens, H = heads, D = channels, E = experts.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["MEANINGS", "RootSizes", "dims_of", "parameter_dims", "root_sizes"]

MEANINGS = frozenset({"batch", "token", "head", "channel", "expert"})
"""What a dim may stand for; `""` where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootSizes:
    """Batch and token counts of the model's own inputs."""

    batch: int
    tokens: int


def root_sizes(inputs: Mapping[str, tuple[Sequence[int], str]]) -> RootSizes | None:
    """Tell batch and token counts from the model's inputs.

    Args:
        inputs: shape and dtype by path. `input_ids` `[B, S]` comes first, then `inputs_embeds` `[B, S, D]`,
            then the first one with two dims or more; a floating `[S, D]` has no batch.

    Returns:
        The sizes, or None where no input has two dims.
    """
    ordered = [inputs[path] for path in ("input_ids", "inputs_embeds") if path in inputs]
    for shape, dtype in [*ordered, *inputs.values()]:
        if len(shape) == 2 and "float" in dtype:
            return RootSizes(batch=1, tokens=shape[0])
        if len(shape) >= 2:
            return RootSizes(batch=shape[0], tokens=shape[1])
    return None


def dims_of(
    shape: Sequence[int],
    *,
    batch: int,
    tokens: int,
    path: str,
    experts: int | None = None,
    choices: Collection[tuple[int, ...]] = (),
) -> tuple[str, ...]:
    """Tell the meaning of each dim of an activation.

    Args:
        shape: of the logical tensor.
        batch: B of the model's inputs.
        tokens: S of the model's inputs.
        path: of the edge; a mask's last dim is no channel.
        experts: E of the router whose output it is.
        choices: shapes of what says or weighs which experts a token is sent to: places in their last dim mean
            nothing.

    Returns:
        One word a dim, `""` where it can't be told.
    """
    dims = _dims(tuple(shape), batch, tokens)
    if dims and dims[-1] == "channel":
        if shape[-1] == experts or "router_logits" in path.split("/"):
            return (*dims[:-1], "expert")
        if "mask" in path or tuple(shape) in choices:
            return (*dims[:-1], "")
    return dims


def parameter_dims(shape: Sequence[int], *, experts: int | None = None) -> tuple[str, ...]:
    """Tell the meaning of each dim of a parameter: rows are channels, or those of a mixture's E experts."""
    rows = "expert" if shape and shape[0] == experts else "channel"
    return (rows, *[""] * (len(shape) - 1)) if shape else ()


def _dims(shape: tuple[int, ...], batch: int, tokens: int) -> tuple[str, ...]:
    match shape:
        case (b, s, *rest) if (b, s) == (batch, tokens) and len(rest) <= 2:
            return ("batch", "token", *("head", "channel")[2 - len(rest) :])
        case (b, _, s, last) if b in (batch, 1) and s == tokens:
            return ("batch" if b == batch else "", "head", "token", "" if last == tokens else "channel")
        case (1, s, *rest) if s == tokens and len(rest) <= 2:
            return ("", "token", *("head", "channel")[2 - len(rest) :])
        case (rows, *rest) if rows in (batch * tokens, tokens) and len(rest) <= 2:
            return ("token", *("head", "channel")[2 - len(rest) :])
        case (b, _, _) if b == batch:
            return ("batch", "", "channel")
        case (b, _) if b == batch:
            return ("batch", "channel")
        case (b,) if b == batch:
            return ("batch",)
    return ("",) * len(shape)

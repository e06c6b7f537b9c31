"""The meaning of dims, told from sizes."""

import pytest

from validator.align.dims import RootSizes, dims_of, parameter_dims, root_sizes

B, S, H, D = 2, 6, 4, 16


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((B, S), ("batch", "token")),
        ((B, S, D), ("batch", "token", "channel")),
        ((B, S, H, D), ("batch", "token", "head", "channel")),
        ((B, H, S, D), ("batch", "head", "token", "channel")),
        ((B, H, S, S), ("batch", "head", "token", "")),
        ((1, S), ("", "token")),
        ((1, S, D), ("", "token", "channel")),
        ((1, 1, S, S), ("", "head", "token", "")),
        ((S, D), ("token", "channel")),
        ((B * S, D), ("token", "channel")),
        ((B * S, H, D), ("token", "head", "channel")),
        ((B * S,), ("token",)),
        ((B, 1, D), ("batch", "", "channel")),
        ((B, D), ("batch", "channel")),
        ((B,), ("batch",)),
        ((), ()),
        ((7, 5), ("", "")),
        ((B, S, 3, 3, 3), ("", "", "", "", "")),
    ],
    ids=str,
)
def test_dims_of_an_activation(shape: tuple[int, ...], dims: tuple[str, ...]) -> None:
    assert dims_of(shape, batch=B, tokens=S, path="") == dims


def test_only_scores_of_all_experts_are_along_the_experts() -> None:
    def of_router(columns: int) -> tuple[str, ...]:
        return dims_of((B * S, columns), batch=B, tokens=S, path="0", experts=8, choices={(B * S, 2)})

    assert of_router(8) == ("token", "expert")
    assert of_router(2) == ("token", "")
    assert of_router(D) == ("token", "channel")
    logits = dims_of((B * S, 8), batch=B, tokens=S, path="router_logits/3")
    assert logits == ("token", "expert")


def test_the_last_dim_of_a_mask_is_no_channel() -> None:
    dims = dims_of((B, 1, S, 32), batch=B, tokens=S, path="attention_mask")
    assert dims == ("batch", "head", "token", "")


@pytest.mark.parametrize(
    ("inputs", "sizes"),
    [
        ({"attention_mask": ((4, 9), "int64"), "input_ids": ((B, S), "int64")}, RootSizes(batch=B, tokens=S)),
        ({"inputs_embeds": ((B, S, D), "float32")}, RootSizes(batch=B, tokens=S)),
        ({"x": ((), "float32"), "y": ((B, S, D), "float32")}, RootSizes(batch=B, tokens=S)),
        ({"x": ((S, D), "bfloat16")}, RootSizes(batch=1, tokens=S)),
        ({"x": ((3,), "float32")}, None),
        ({}, None),
    ],
    ids=["input_ids first", "embeds", "first with two dims", "no batch", "one dim", "none"],
)
def test_sizes_come_from_the_models_inputs(
    inputs: dict[str, tuple[tuple[int, ...], str]], sizes: RootSizes | None
) -> None:
    assert root_sizes(inputs) == sizes


def test_rows_of_a_parameter_are_channels_or_experts() -> None:
    assert parameter_dims((4, 5)) == ("channel", "")
    assert parameter_dims((4,)) == ("channel",)
    assert parameter_dims(()) == ()
    assert parameter_dims((8, 4, 5), experts=8) == ("expert", "", "")
    assert parameter_dims((4, 5), experts=8) == ("channel", "")

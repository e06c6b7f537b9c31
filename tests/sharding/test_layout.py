"""The target's layout: what can be read, how errors point at what can't, and what each form means."""

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings

from tests.sharding.layouts import layouts
from validator.capturing.records import Mesh
from validator.errors import LayoutError
from validator.sharding.grammar import TensorLayout, read_line
from validator.sharding.layout import Declared, Layout, parse_layout, plan_layout, resolve_layouts
from validator.sharding.meshes import declared_mesh
from validator.sharding.plan import Plan
from validator.sharding.unshard import shard, unshard

Array = np.ndarray
Cut = Callable[[Array, int], Array]


def of(text: str, side: str = "output") -> TensorLayout:
    return read_line(text)[side]


def plan(text: str, shape: tuple[int, ...], world: int, mesh: Mesh | None = None) -> Plan:
    return plan_layout(shape, layout=of(text), mesh=mesh, ranks=range(world))


def blocks(*segments: Array) -> Cut:
    """Per-rank blocks: rank r of 2 has the r-th half of each segment."""
    return lambda _, rank: np.concatenate([np.split(segment, 2)[rank] for segment in segments])


def groups(x: Array, rank: int) -> Array:
    """Of 8 q heads, 2 k heads and 2 v heads of 3 rows: rank r has those of kv head r, q first."""
    q, k, v = x[:24], x[24:30], x[30:]
    return np.concatenate([q[12 * rank : 12 * rank + 12], k[3 * rank : 3 * rank + 3], v[3 * rank :][:3]])


def rope(x: Array, rank: int) -> Array:
    """Rows x0 y0 x1 y1 of each head, where the reference has x0 x1 y0 y1; two heads a rank."""
    heads = [head.reshape(2, -1).T.reshape(-1) for head in np.split(x, 4)]
    return np.concatenate(heads[2 * rank : 2 * rank + 2])


def padded(x: Array, size: int) -> Array:
    return np.concatenate([x, np.zeros(size - len(x), dtype=x.dtype)])


EXAMPLES: dict[str, tuple[str, int, int, Cut]] = {
    "a dim in halves": ("h[tp]", 8, 2, lambda x, r: np.split(x, 2)[r]),
    "an uneven dim, as torch.chunk": ("h[tp]", 7, 3, lambda x, r: x[3 * r : 3 * r + 3]),
    "shards of written sizes": ("h[tp=3|1]", 8, 2, lambda x, r: (x[:6], x[6:])[r]),
    "ranks in another order": ("h[tp:2,0,1]", 6, 3, lambda x, r: np.split(x, 3)[(2, 0, 1)[r]]),
    "fused QKV in per-rank blocks": (
        "(q=8|k=2|v=2)[tp]",
        36,
        2,
        lambda x, r: blocks(x[:24], x[24:30], x[30:])(x, r),
    ),
    "fused QKV per kv group": ("(q=8|k=2|v=2):per_kv_group[tp]", 36, 2, groups),
    "fused QKV per kv group of the rank": ("(q=8|k=2|v=2)[tp]:per_kv_group", 36, 2, groups),
    "gate and up in halves": ("(gate|up)[tp]", 12, 2, lambda x, r: blocks(x[:6], x[6:])(x, r)),
    "up first": ("(gate|up):1,0[tp]", 12, 2, lambda x, r: blocks(x[6:], x[:6])(x, r)),
    "gate and up interleaved": (
        "(gate|up):interleaved[tp]",
        12,
        2,
        lambda x, r: np.split(x.reshape(2, 6).T.reshape(-1), 2)[r],
    ),
    "gate and up interleaved in blocks": (
        "(gate|up):interleaved(3)[tp]",
        12,
        2,
        lambda x, r: np.concatenate([x[3 * r : 3 * r + 3], x[6 + 3 * r : 9 + 3 * r]]),
    ),
    "kv heads held by two ranks each": ("(kv=2 d)[tp/2]", 6, 4, lambda x, r: np.split(x, 2)[r // 2]),
    "fused QKV with shared kv heads": (
        "(q=4[tp]|k=2[tp/2]|v=2[tp/2])",
        8,
        4,
        lambda x, r: x[[r, 4 + r // 2, 6 + r // 2]],
    ),
    "a padded vocabulary": ("v:pad(4)[tp]", 6, 2, lambda x, r: np.split(padded(x, 8), 2)[r]),
    "shards padded on each rank": ("h[tp]:pad(4)", 6, 2, lambda x, r: padded(np.split(x, 2)[r], 4)),
    "heads padded inside": (
        "(heads=2 d:pad(4))[tp]",
        6,
        2,
        lambda x, r: padded(np.split(x, 2)[r], 4),
    ),
    "uneven heads": ("(heads=3 d)[tp]", 6, 2, lambda x, r: (x[:4], x[4:])[r]),
    "tokens in zigzag": (
        "s[cp:zigzag]",
        16,
        4,
        lambda x, r: np.concatenate([np.split(x, 8)[r], np.split(x, 8)[7 - r]]),
    ),
    "tokens in zigzag, in one tensor": (
        "s:zigzag(2)",
        8,
        2,
        lambda x, r: x[[0, 1, 6, 7, 2, 3, 4, 5]],
    ),
    "tokens in zigzag, packed sequences each": (
        "(8|4)[cp:zigzag]",
        12,
        2,
        lambda x, r: x[([0, 1, 6, 7, 8, 11], [2, 3, 4, 5, 9, 10])[r]],
    ),
    "tokens round robin": ("s[cp:interleaved]", 9, 2, lambda x, r: x[r::2]),
    "tokens round robin in blocks": (
        "s[cp:interleaved(2)]",
        8,
        2,
        lambda x, r: x.reshape(2, 2, 2)[:, r].reshape(-1),
    ),
    "sequence shards of a flat batch": ("(b=2 s)[tp]", 8, 2, lambda x, r: np.split(x, 2)[r]),
    "token shards inside a flat batch": (
        "(b=2 s[tp])",
        8,
        2,
        lambda x, r: x.reshape(2, 2, 2)[:, r].reshape(-1),
    ),
    "permuted experts": ("e:2,0,3,1[ep]", 4, 2, lambda x, r: x[[2, 0, 3, 1]][2 * r : 2 * r + 2]),
    "redundant experts": ("e:0-3,1,2[ep]", 4, 3, lambda x, r: x[[0, 1, 2, 3, 1, 2]][2 * r : 2 * r + 2]),
    "RoPE interleaved against halves": ("(heads=4 (x|y):interleaved)[tp]", 16, 2, rope),
    "copies": ("h", 4, 2, lambda x, r: x),
}


@pytest.mark.parametrize(("text", "size", "world", "cut"), EXAMPLES.values(), ids=list(EXAMPLES))
def test_a_form_means_what_numpy_says(text: str, size: int, world: int, cut: Cut) -> None:
    planned = plan(f"{text} w", (size, 3), world)
    whole = np.arange(1, 3 * size + 1).reshape(size, 3)
    local = {rank: np.stack([cut(column, rank) for column in whole.T], axis=1) for rank in range(world)}
    for rank, expected in local.items():
        assert shard(planned, torch.from_numpy(whole), rank).tolist() == expected.tolist()
    assert unshard(planned, lambda rank: torch.from_numpy(local[rank])).tolist() == whole.tolist()


@settings(max_examples=200)
@given(layouts())
def test_sharding_and_joining_is_the_identity(drawn: tuple[str, tuple[int, ...], Mesh]) -> None:
    text, shape, mesh = drawn
    try:
        planned = plan_layout(shape, layout=of(text), mesh=mesh, ranks=mesh.ranks)
    except LayoutError:
        assume(False)
    whole = torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)
    local = {rank: shard(planned, whole, rank) for rank in mesh.ranks}
    assert torch.equal(unshard(planned, local.__getitem__), whole)
    for ranks in planned.copies:
        assert all(torch.equal(local[rank], local[ranks[0]]) for rank in ranks)
    for rank in mesh.ranks:
        held = sum(prod(stop - start for start, stop in part.box) for part in planned.parts((rank,)))
        assert held == len(set(local[rank].flatten().tolist()) - {0.0}) or planned.reduce


def test_most_random_lines_fit() -> None:
    # Else the law above would hold of nothing.
    fitting = 0

    @settings(max_examples=100, database=None)
    @given(layouts())
    def count(drawn: tuple[str, tuple[int, ...], Mesh]) -> None:
        nonlocal fitting
        text, shape, mesh = drawn
        try:
            plan_layout(shape, layout=of(text), mesh=mesh, ranks=mesh.ranks)
        except LayoutError:
            return
        fitting += 1

    count()
    assert fitting > 30


def test_terms_of_a_sum_lie_along_their_axis() -> None:
    mesh = Mesh(axes=("dp", "tp"), shape=(2, 2), ranks=(0, 1, 2, 3))
    planned = plan("b[dp] h +tp", (4, 2), 4, mesh)
    assert planned.reduce == "sum"
    terms = {0: torch.ones(2, 2), 1: torch.full((2, 2), 2.0), 2: torch.zeros(2, 2), 3: torch.ones(2, 2)}
    assert unshard(planned, terms.__getitem__).tolist() == [[3, 3], [3, 3], [1, 1], [1, 1]]


def test_an_axis_that_is_not_named_holds_copies() -> None:
    mesh = Mesh(axes=("dp", "tp"), shape=(2, 2), ranks=(0, 1, 2, 3))
    assert plan("h[tp]", (4,), 4, mesh).copies == ((0, 2), (1, 3))
    assert plan("h[dp]", (4,), 4, mesh).copies == ((0, 1), (2, 3))


def test_one_axis_is_all_ranks_where_there_is_no_mesh() -> None:
    planned = plan_layout((4,), layout=of("h[tp]"), mesh=None, ranks=(2, 3))
    assert planned.shard_of(3) == ((2, 4),)


def test_axes_cut_one_dim_from_left_to_right() -> None:
    mesh = Mesh(axes=("dp", "tp"), shape=(2, 2), ranks=(0, 1, 2, 3))
    assert [plan("h[dp][tp]", (4,), 4, mesh).shard_of(rank) for rank in (1, 2)] == [((1, 2),), ((2, 3),)]
    assert [plan("h[tp][dp]", (4,), 4, mesh).shard_of(rank) for rank in (1, 2)] == [((2, 3),), ((1, 2),)]


def test_dots_stand_for_any_number_of_dims() -> None:
    for shape in [(4,), (3, 4), (2, 3, 4)]:
        assert plan("... h[tp]", shape, 2).shard_of(1) == (*((0, size) for size in shape[:-1]), (2, 4))
    assert plan("b[tp] ...", (4, 3), 2).shard_of(0) == ((0, 2), (0, 3))


def test_padding_that_two_ranks_hold_is_not_compared() -> None:
    mesh = Mesh(axes=("dp", "tp"), shape=(2, 2), ranks=(0, 1, 2, 3))
    assert plan("v:pad(4)[tp]", (6,), 4, mesh).copies == ((0, 2), (1,), (3,))


def test_float8_is_joined() -> None:
    planned = plan("(gate|up):interleaved[tp]", (8,), 2)
    whole = torch.arange(8.0).to(torch.float8_e4m3fn)
    assert torch.equal(unshard(planned, lambda r: shard(planned, whole, r)).float(), whole.float())


def test_an_interleaved_layout_is_planned_in_runs() -> None:
    planned = plan("(gate|up):interleaved[tp] h", (22016, 8), 4)
    assert [len(holding.dims[0]) for holding in planned.holdings] == [2] * 4
    assert [len(planned.parts((rank,))) for rank in range(4)] == [2] * 4


def test_sides_are_read_by_name() -> None:
    layout = parse_layout("input=b s h[tp], output.0=e:0,1[ep] h, weight=o i[tp], input.mask=b s")

    def found(side: str, path: str = "") -> TensorLayout | None:
        declared = layout.of(side, path)
        return declared and declared.layout

    assert found("input", "x") == of("b s h[tp]")
    assert found("input", "mask") == of("b s")
    assert found("output", "1") is None
    assert found("output", "0") == of("e:0,1[ep] h")
    assert found("weight") == of("o i[tp]")
    assert found("bias") is None


def test_the_lines_of_the_readme_can_be_read() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text()
    section = text.partition("\n## Layouts\n")[2].partition("\n## ")[0]
    names: dict[str, Any] = {}
    exec(section.partition("```python\n")[2].partition("```")[0], names)
    mesh = declared_mesh(names["mesh"], ranks=range(8))
    modules = [name.replace("*", "0") for name in names["layout"]]
    parameters = {"0.self_attn.qkv_proj.weight"}
    resolved = resolve_layouts(names["layout"], modules=modules, parameters=parameters, mesh=mesh)
    qkv = resolved["0.self_attn.qkv_proj"].of("weight")
    assert qkv is not None
    assert qkv.plan((96, 4), range(8)).copies == ((0, 4), (1, 5), (2, 6), (3, 7))
    forms = [form for row in section.splitlines() if row.startswith("| `") for form in row.split("`")[1::2]]
    lines = [form.replace("\\|", "|") for form in forms if " " in form or "[" in form]
    assert len(lines) > 10
    for line in lines:
        read_line(line)


@pytest.mark.parametrize(
    ("text", "why", "at"),
    [
        ("", "expected a dim: a name, a number, '...' or '('", 0),
        ("b s[tp", "expected ':' or ']'", 6),
        ("b s[]", "expected a mesh axis", 4),
        ("b s[tp:zig]", "expected an order: contiguous, zigzag, interleaved, or a list such as 1,0", 7),
        ("b s:contiguous", "expected an order: interleaved, per_kv_group, zigzag, pad, or a list", 4),
        ("b s h=3", "sizes are written inside ( ), such as (heads=8 dim)", 4),
        ("(a|b c)", "expected '|' or ')'", 5),
        ("(a b|c)", "expected a dim or ')'", 4),
        ("(", "expected a dim: a name, a number or '('", 1),
        ("x y:1,3", "the order leaves out 0", 4),
        ("b s, b s", "expected a side such as input= or weight=", 5),
        ("b s, output=b s", "output is given twice", 5),
        ("input=b, input=b", "input is given twice", 9),
        ("b ! s", "'!' means nothing here", 2),
        ("(q=8|k=2):pad", "expected '('", 13),
        ("s:zigzag s", "expected '('", 9),
        ("b s +", "expected a mesh axis", 5),
        ("b s h,", "expected a side such as input= or weight=", 6),
        ("input=, output=b", "expected a dim", 6),
        ("... x ...", "... may stand once", 6),
        ("b s[tp/0]", "expected a number of 1 or more", 7),
        ("b s]", "expected a dim, '+', ',' or the end", 3),
    ],
)
def test_an_error_points_at_the_character(text: str, why: str, at: int) -> None:
    with pytest.raises(LayoutError) as caught:
        parse_layout(text)
    headline, shown, pointer = str(caught.value).split("\n")
    assert headline.startswith(f"layout can't be read: {why}")
    assert shown == f"  {text}"
    assert pointer == f"  {' ' * at}^"


@pytest.mark.parametrize(
    ("text", "size", "why", "at"),
    [
        ("h[tp=3|1]", 7, "7 can't be cut into 4 equal parts", 1),
        ("h[tp=3|1|1]", 10, "3 sizes for 2 shards", 1),
        ("(gate|up)", 7, "7 elements can't be cut into 1 + 1 equal parts", 0),
        ("(q=4|k)", 8, "its size is not written, but that of another piece is", 5),
        ("(a=3|b=1):interleaved", 8, "pieces of 1 and 3 can't alternate", 10),
        ("(a=3|b=3):interleaved(2)", 6, "3 can't be cut into blocks of 2", 10),
        ("(q|k|v):per_kv_group", 12, "it takes the numbers of heads", 8),
        ("h:interleaved", 4, "interleaved is an order of pieces: (a|b):interleaved", 2),
        ("h[tp:0,1,2]", 6, "3 shards are listed for 2 ranks", 5),
        ("h[tp/3]", 6, "2 ranks can't be cut into groups of 3", 1),
        ("(a b)", 4, "one dim at most has no size; write (heads=8 dim)", 1),
        ("(a=3 b)", 4, "4 elements can't be cut into 3", 0),
        ("e:1,0", 3, "3 can't be cut into 2 blocks", 2),
        ("(a|b):0,1,2", 6, "the order is of 3 pieces, and there are 2", 6),
        ("h[dp]", 4, "there is no mesh axis 'dp'; known: tp", 2),
        ("h +dp", 4, "there is no mesh axis 'dp'; known: tp", 3),
        ("3", 4, "it is 4 in [4], not 3", 0),
    ],
)
def test_what_does_not_fit_is_pointed_at(text: str, size: int, why: str, at: int) -> None:
    mesh = Mesh(axes=("tp",), shape=(2,), ranks=(0, 1))
    with pytest.raises(LayoutError) as caught:
        plan(text, (size,), 2, mesh)
    headline, shown, pointer = str(caught.value).split("\n")
    assert headline.startswith(f"layout does not fit: {why}")
    assert (shown, pointer) == (f"  {text}", f"  {' ' * at}^")


@pytest.mark.parametrize(
    ("text", "shape", "why"),
    [
        ("b s", (4,), r"2 dims are written for a tensor \[4\]"),
        ("s s", (4, 3), r"it is 3 in \[4, 3\], not 4"),
        ("x[a] y[b]", (4, 4), r'the axes a and b; say their sizes, with mesh = {"a": ..., "b": ...}'),
        (
            "x[a] y[a]",
            (4, 4),
            r"hold 8 of the 16 elements of a tensor \[4, 4\], by the layout 'x\[a\] y\[a\]'",
        ),
    ],
)
def test_a_layout_that_does_not_make_up_the_tensor_is_an_error(
    text: str, shape: tuple[int, ...], why: str
) -> None:
    with pytest.raises(LayoutError, match=why):
        plan(text, shape, 2)


def test_a_rank_outside_of_the_mesh_is_an_error() -> None:
    mesh = Mesh(axes=("tp",), shape=(2,), ranks=(0, 1))
    with pytest.raises(LayoutError, match=r"the mesh \{'tp': 2\} has no rank 2"):
        plan("h[tp]", (4,), 3, mesh)


def test_a_pattern_names_every_module_that_it_matches() -> None:
    modules = ["model.layers.0.mlp", "model.layers.1.mlp", "model.norm"]
    resolved = resolve_layouts({"model.layers.*.mlp": "... +tp"}, modules=modules, parameters=())
    assert resolved == dict.fromkeys(modules[:2], Layout(sides={"output": Declared(layout=of("... +tp"))}))


def test_a_pattern_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(LayoutError, match=r"'model\.layer\.\*' matches no module .* model\.layers\.0"):
        resolve_layouts({"model.layer.*": "... +tp"}, modules=["model.layers.0"], parameters=())


def test_a_side_that_no_module_has_is_an_error() -> None:
    modules, parameters = ["mlp", "norm"], {"mlp.weight"}
    resolve_layouts({"*": "weight=o[tp] i"}, modules=modules, parameters=parameters)
    with pytest.raises(
        LayoutError, match=r"'norm' speaks of 'weight', which is neither .* parameter of norm"
    ):
        resolve_layouts({"norm": "weight=o[tp]"}, modules=modules, parameters=parameters)
    with pytest.raises(LayoutError, match="'mlp' speaks of 'h', "):
        resolve_layouts({"mlp": "h=8 d"}, modules=modules, parameters=parameters)

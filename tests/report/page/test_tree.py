from collections.abc import Iterator
from dataclasses import replace

from validator.checks.findings import Check, Outcome
from validator.report.page.tree import Node, tree_of


def test_the_tree_is_open_along_the_path_to_the_first_divergence(divergent: Outcome) -> None:
    def opened(node: Node, path: str = "") -> Iterator[str]:
        if node.is_open:
            yield path
        for child in node.children.values():
            yield from opened(child, f"{path}/{child.name}")

    tree = tree_of(divergent)
    assert list(opened(tree)) == [
        "",
        "/model",
        "/model/layers",
        "/model/layers/2",
        "/model/layers/2/mlp",
        "/model/layers/2/mlp/down_proj",
    ]
    assert (tree.count, tree.size) == (12, "12 edges")
    down = tree.children["model"].children["layers"].children["0"].children["mlp"].children["down_proj"]
    assert (down.children["weight"].count, down.children["weight"].size) == (1, "1 edge")
    assert tree.children["model"].verdict == "divergent"
    assert tree.children["model"].children["layers"].children["1"].verdict == "aligned"


def test_an_edge_is_named_in_its_module(divergent: Outcome) -> None:
    into = replace(
        divergent.judgements[8], check=Check.WIRING, into="model.layers.2.mlp.down_proj", path="input"
    )
    tree = tree_of(replace(divergent, judgements=(*divergent.judgements[:2], into)))
    layer = tree.children["model"].children["layers"]
    assert [edge.name for edge in layer.children["2"].children["mlp"].edges] == [
        "into down_proj [input] (wiring)"
    ]
    down = layer.children["0"].children["mlp"].children["down_proj"]
    assert [(edge.name, edge.error) for edge in down.edges] == [("output (function)", "0.71")]


def test_the_model_itself_is_the_root(divergent: Outcome) -> None:
    tree = tree_of(replace(divergent, judgements=(replace(divergent.judgements[1], module=""),)))
    assert (tree.name, len(tree.edges), tree.children) == ("(the model itself)", 1, {})

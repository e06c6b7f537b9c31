from dataclasses import replace
from typing import Any

from validator.checks.findings import Outcome
from validator.report.page.metadata import facts_of
from validator.report.page.rendering import to_html


def test_metadata_of_both_sides_stand_side_by_side_and_differences_are_marked(divergent: Outcome) -> None:
    run: dict[str, Any] = {
        "reference": {
            "software": {"torch": "2.10"},
            "hardware": [{"cpu": "a"}],
            "seeds": [1, 2],
            "only": None,
        },
        "candidate": {
            "software": {"torch": "2.11"},
            "hardware": [{"cpu": "a"}, {"cpu": "b"}],
            "seeds": [1, 2],
        },
    }
    facts = {f.name: (f.reference, f.candidate, f.differs) for f in facts_of(replace(divergent, run=run))}
    assert facts == {
        "software.torch": ("2.10", "2.11", True),
        "hardware.cpu": ("a", "a, b", True),
        "seeds": ("1, 2", "1, 2", False),
        "only": ("-", "-", False),
    }
    page = to_html(replace(divergent, run=run))
    assert page.count('aria-label="differs"') == 2


def test_what_all_ranks_have_in_common_is_told_once(divergent: Outcome) -> None:
    hardware = [
        {"rank": rank, "host": f"node{rank // 2}", "devices": [{"name": "card"}]} for rank in range(4)
    ]
    seeds = {"torch": {str(rank): 7 for rank in range(4)}, "0": {"a": 1}}
    run: dict[str, Any] = {
        "reference": {"hardware": hardware[:1], "seeds": {"torch": {"0": 7}, "0": {"a": 1}}},
        "candidate": {"hardware": hardware, "seeds": seeds},
    }
    assert {f.name: (f.reference, f.candidate) for f in facts_of(replace(divergent, run=run))} == {
        "hardware.rank": ("0", "0, 1, 2, 3"),
        "hardware.host": ("node0", "node0 (2 times), node1 (2 times)"),
        "hardware.devices.name": ("card", "card"),
        "seeds.torch": ("7", "7"),
        "seeds.0.a": ("1", "1"),
    }


def test_values_that_read_alike_once_put_in_a_row_differ(divergent: Outcome) -> None:
    def side(meshes: list[list[str]], *gpus: str | None) -> dict[str, Any]:
        ranks = [{"cpu": "a"} if gpu is None else {"cpu": "a", "gpu": gpu} for gpu in gpus]
        return {"meshes": [{"axes": axes} for axes in meshes], "hardware": ranks}

    run = {
        "reference": side([["dp"], ["tp", "pp"]], None, "H"),
        "candidate": side([["dp", "tp"], ["pp"]], "H", "H"),
    }
    facts = {f.name: (f.reference, f.candidate, f.differs) for f in facts_of(replace(divergent, run=run))}
    assert facts == {
        "meshes.axes": ("[dp], [tp, pp]", "[dp, tp], [pp]", True),
        "hardware.cpu": ("a", "a", False),
        "hardware.gpu": ("-, H", "H", True),
    }


def test_meshes_that_one_side_has_none_of_stand_where_they_are_told(divergent: Outcome) -> None:
    def side(*meshes: dict[str, Any]) -> dict[str, Any]:
        return {"parallelism": {"world_size": 1, "meshes": list(meshes)}, "recipe": "fused"}

    def told(**run: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
        facts = facts_of(replace(divergent, run=run))
        return [(f.name, f.reference, f.candidate, f.differs) for f in facts]

    sharded = side({"axes": ["tp"], "shape": [2]})
    same = [("parallelism.world_size", "1", "1", False), ("recipe", "fused", "fused", False)]
    assert told(reference=side(), candidate=sharded) == [
        same[0],
        ("parallelism.meshes.axes", "-", "tp", True),
        ("parallelism.meshes.shape", "-", "2", True),
        same[1],
    ]
    assert told(reference=sharded, candidate=side())[1:3] == [
        ("parallelism.meshes.axes", "tp", "-", True),
        ("parallelism.meshes.shape", "2", "-", True),
    ]
    assert told(reference=side(), candidate=side()) == [
        same[0],
        ("parallelism.meshes", "-", "-", False),
        same[1],
    ]


def test_a_value_beside_a_mapping_keeps_its_row(divergent: Outcome) -> None:
    run = {"reference": {"source": "tiny"}, "candidate": {"source": {"path": "port.py"}}}
    facts = {f.name: (f.reference, f.candidate, f.differs) for f in facts_of(replace(divergent, run=run))}
    assert facts == {"source": ("tiny", "-", True), "source.path": ("-", "port.py", True)}

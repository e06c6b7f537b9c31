"""What a target's models consist of."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from validator.cli import app
from validator.inventory import Inventory, inventory_of, model_inventory

PORT = """
import torch
from torch import nn


def model(name):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module(name, nn.Linear(4, 4))

    return nn.Sequential(nn.Embedding(8, 4), Block(), Block())


def reference():
    return model("up")


def candidate():
    made = model("NAME").bfloat16()
    SPOIL
    return made


def inputs():
    return {"input": torch.arange(4)}
"""


def port(folder: Path, *, name: str = "up", spoil: str = "pass") -> str:
    path = folder / "port.py"
    path.write_text(PORT.replace("NAME", name).replace("SPOIL", spoil))
    return str(path)


def test_modules_and_parameters_are_counted_by_class_and_format(tmp_path: Path) -> None:
    found = inventory_of(port(tmp_path))
    classes = {one.name: (one.count, one.parameters) for one in found.reference.classes}
    assert classes == {"Sequential": (1, 0), "Embedding": (1, 32), "Block": (2, 0), "Linear": (2, 40)}
    (candidate,) = found.candidate
    assert (candidate.dtypes, candidate.local_bytes) == ({"bfloat16": 72}, 144)
    assert found.summary == "6 modules and 72 parameters, the candidate 6 and 72"
    assert (found.problems, found.exit_code) == ((), 0)


def test_names_that_one_side_has_alone_are_noted_and_are_no_problem(tmp_path: Path) -> None:
    found = inventory_of(port(tmp_path, name="gate"))
    notes = found.to_json()["notes"]
    assert "4 parameters of the candidate alone by name, such as 1.gate.weight" in notes[1]
    assert found.exit_code == 0


def test_of_several_ranks_the_names_of_all_are_counted_and_plain_tensors_as_a_rank_has_them() -> None:
    first = nn.Sequential(nn.Linear(4, 2, bias=False))
    second = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(4, 4, bias=False))
    whole = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    found = Inventory(
        source="port.py",
        reference=model_inventory(whole, side="reference"),
        candidate=tuple(model_inventory(m, side="candidate", rank=r) for r, m in enumerate((first, second))),
    )
    assert found.parameters == {"0.weight": 12, "1.weight": 16}
    assert found.summary == "3 modules and 32 parameters, the candidate 3 a rank and 28 on 2 ranks"
    notes = found.to_json()["notes"]
    assert not any("alone by name" in note for note in notes)
    assert any("plain tensors, of which a rank's own elements are counted" in note for note in notes)


def test_a_parameter_that_is_shared_is_counted_once_and_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    found = model_inventory(model, side="reference")
    assert found.total == 16
    assert found.shared == {"0.weight": ("1.weight",)}


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        ("made[1].up.weight.data[2, 1] = float('nan')", "NaN or infinity in 1 parameter of the candidate"),
        ("made = made.to('meta')", "5 tensors of the candidate on the meta device, without values"),
    ],
)
def test_weights_that_were_not_loaded_are_a_problem(tmp_path: Path, spoil: str, problem: str) -> None:
    result = CliRunner().invoke(app, ["inventory", port(tmp_path, spoil=spoil), "--json", "-"])
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["problems"][0].startswith(problem)


def test_a_buffer_may_be_infinite_as_masks_are() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("mask", torch.full((2,), -torch.inf))
    assert model_inventory(model, side="reference").problems == ()

from collections.abc import Callable

import torch
from torch import Tensor, nn

from validator.capturing.reader import open_capture
from validator.capturing.session import capture
from validator.capturing.watch import Place, Watch


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        return {"y": self.inner(self.inner(x)) * scale}


def seen_by(seen: Callable[[Place, Tensor], Tensor | None]) -> dict[str, Tensor]:
    model = Twice()
    with torch.no_grad(), Watch(model, seen):
        made: dict[str, Tensor] = model(torch.ones(1, 2), scale=2.0)
    return made


def test_places_are_those_of_a_capture(tmp_path) -> None:
    places: list[Place] = []
    seen_by(lambda place, tensor: places.append(place))
    model = Twice()
    with torch.no_grad(), capture(model, tmp_path / "run.h5"):
        model(torch.ones(1, 2), scale=2.0)
    calls = open_capture(tmp_path / "run.h5").rank(0).calls
    captured = {(c.module, c.n, "inputs", path) for c in calls for path in c.inputs if path != "scale"}
    captured |= {(c.module, c.n, "outputs", path) for c in calls for path in c.outputs}
    assert {(p.module, p.call, p.side, p.path) for p in places} == captured
    assert [p.call for p in places if p.module == "inner"] == [0, 0, 1, 1]


def test_what_is_returned_goes_on_in_the_tensors_place() -> None:
    def halved(place: Place, tensor: Tensor) -> Tensor | None:
        return torch.zeros_like(tensor) if place.path == "y" else None

    assert torch.equal(seen_by(halved)["y"], torch.zeros(1, 2))
    inputs: list[Tensor] = []

    def others(place: Place, tensor: Tensor) -> Tensor | None:
        if place.module == "inner":
            inputs.append(tensor)
        return tensor + 1 if not place.module and place.side == "inputs" else None

    seen_by(others)
    assert torch.equal(inputs[0], torch.full((1, 2), 2.0))


def test_hooks_are_off_again() -> None:
    model = Twice()
    with Watch(model, lambda place, tensor: None):
        pass
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())

"""A small port whose channel 40 is wrong, judged with profiles and with the values of all edges kept."""

from pathlib import Path

import pytest

from tests.small_port import write_port
from validator.api import check_target
from validator.report.result import Result

FAULTY = """
class Faulty(Net):
    def forward(self, input_ids):
        hidden = self.up(self.embed(input_ids)).clone()
        hidden[:, :, 40] *= 1.5
        return self.head(torch.relu(hidden))


def candidate():
    torch.manual_seed(0)
    return Faulty().to(torch.bfloat16)


def reference():
    torch.manual_seed(0)
    return Net()
"""


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `--keep`."""
    return tmp_path_factory.mktemp("kept") / "run"


@pytest.fixture(scope="session")
def faulty(kept: Path) -> Result:
    """The result, with profiles."""
    return check_target(str(write_port(kept.parent, FAULTY)), keep=kept, profiles=True)

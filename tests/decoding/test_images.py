"""Text that is generated from images: the encoder runs outside of the model's own call."""

from pathlib import Path

import pytest

from tests.models import Setup, checkpoint
from validator.checks.findings import Verdict
from validator.target_check import check_target

PORT = """
import torch
from pathlib import Path
from tests.models import Setup, inputs as fed, load_candidate, load_reference

SETUP = Setup(family="qwen2.5-vl")
CHECKPOINT = Path({checkpoint!r})


def reference():
    return load_reference(SETUP, CHECKPOINT)


def candidate():
    return load_candidate(SETUP, CHECKPOINT)


def inputs():
    return {{name: value for name, value in fed(SETUP).items() if name != "use_cache"}}


@torch.no_grad()
def run(model, inputs):
    return model.generate(**inputs, max_new_tokens=3, min_new_tokens=3, do_sample=False)
"""


@pytest.mark.slow
def test_generation_from_images_is_aligned_although_pixels_were_rounded_first(tmp_path: Path) -> None:
    path = checkpoint(Setup(family="qwen2.5-vl"), tmp_path)
    (tmp_path / "port.py").write_text(PORT.format(checkpoint=str(path)))
    result = check_target(str(tmp_path / "port.py"))
    assert [finding.summary for finding in result.findings] == []
    assert result.verdict is Verdict.ALIGNED, result.outcome.why_inconclusive

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.small_port import write_port
from validator.cli import app

SPOILED = """
def candidate():
    model = Net().to(torch.bfloat16)
    with torch.no_grad():
        model.up.weight.mul_(1.3)
    return model
"""


def test_the_command_names_the_module_in_every_form_and_exits_with_1(tmp_path: Path) -> None:
    paths = {option: tmp_path / f"swap.{option}" for option in ("json", "html", "csv", "markdown")}
    options = [word for option, path in paths.items() for word in (f"--{option}", str(path))]
    ran = CliRunner().invoke(app, ["bisect", str(write_port(tmp_path, SPOILED)), "--swap", *options])
    assert ran.exit_code == 1, ran.output
    assert ran.stdout.startswith("divergent: up explains a mean KL of")
    assert '"set": [\n    "up"\n  ]' in paths["json"].read_text()
    assert paths["markdown"].read_text().startswith("### divergent: up explains a mean KL of")
    assert "up explains a mean KL of" in paths["html"].read_text()
    assert paths["csv"].read_text().splitlines()[1].startswith("0,up,")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--metric", "kl"], "--metric kl says what a swap is measured by: add --swap"),
        (["--limit", "1"], "--limit 1.0 says what a swap is measured by: add --swap"),
        (["--swap", "--nproc", "2"], "--swap puts modules of both sides into one process, and --nproc is 2"),
        (["--swap", "--metric", "mse"], "there are kl, kl-max, perplexity, flips and token:POSITION"),
        (["--swap", "--limit", "-1"], "give a positive number"),
        (["--swap", "--keep", "run"], "--keep is about captures, and --swap runs hybrids"),
        (["--options", "none.toml"], "--options 'none.toml' can't be read"),
        (["--options", "none.toml", "--module", "up"], "give one"),
    ],
)
def test_mistakes_are_one_message_and_exit_with_2(options: list[str], message: str, tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["bisect", str(write_port(tmp_path)), *options])
    assert ran.exit_code == 2
    assert message in " ".join(ran.stderr.split())

"""How long the HTML page of a large run takes to write and to open, and how large it is.

    python benchmarks/report_page.py [--layers N] [--out FILE]

The outcome is made up: a decoder whose layers have 16 judged edges each, every edge with the longest
profile that an edge can have (random numbers, which compress worst), and 4 faults. Opening is measured in
headless Chromium, from the start of the navigation until the page can be used; it needs `playwright` and
a Chromium, and is left out where they are missing. On a machine that does other work as well both take
longer: the seconds of the processor (of opening: of the page's own thread) stand beside those of the clock.
The exit code is 1 where a limit is passed.
"""

import argparse
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from validator.checks.findings import Arm, Check, Evidence, Finding, Judgement, Outcome, Verdict
from validator.checks.profiles import (
    ULP_EDGES,
    Line,
    OutputProfile,
    Position,
    Profile,
    Sample,
    Unit,
    Window,
)
from validator.checks.profiling import BINS, SAMPLED
from validator.report.result import Result

WRITTEN_S, OPENED_S, SIZE_BYTES = 10.0, 3.0, 6_000_000
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "norm")
EDGES_OF_EACH = 2
FAULTS = 4


def main() -> int:
    """Print the figures of one page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=63, help="16 edges each; 63 layers make 1008 edges")
    parser.add_argument("--out", type=Path, help="where to leave the page")
    arguments = parser.parse_args()
    outcome = made_up(arguments.layers)
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.out or Path(folder) / "page.html"
        start, start_cpu = time.perf_counter(), time.process_time()
        Result(outcome).write_html(path)
        written_s, written_cpu_s = time.perf_counter() - start, time.process_time() - start_cpu
        opened_s, opened_cpu_s = opened(path)
        figures = [
            ("written, s", written_s, WRITTEN_S),
            ("written, s of the processor", written_cpu_s, WRITTEN_S),
            ("size, MB", path.stat().st_size / 1e6, SIZE_BYTES / 1e6),
            ("opened, s", opened_s, OPENED_S),
            ("opened, s of the processor", opened_cpu_s, OPENED_S),
        ]
    table = Table("figure", "measured", "limit", title=f"{len(outcome.judgements)} edges")
    for name, measured, limit in figures:
        table.add_row(name, "not measured" if measured is None else f"{measured:.2f}", f"{limit:g}")
    Console().print(table)
    return int(any(measured is not None and measured > limit for _, measured, limit in figures))


def made_up(layers: int) -> Outcome:
    """Return an outcome of as many layers, four edges of which diverge."""
    random = np.random.default_rng(0)
    judgements: list[Judgement] = []
    for layer in range(layers):
        for module in MODULES:
            for n in range(EDGES_OF_EACH):
                fqn = f"model.layers.{layer}.{module}"
                judgements.append(
                    Judgement(
                        module=fqn if n else f"model.layers.{layer}",
                        candidate_module=fqn,
                        check=Check.FUNCTION if n else Check.WIRING,
                        verdict=Verdict.ALIGNED,
                        order=len(judgements),
                        into=None if n else fqn,
                        path="" if n else "input",
                        recipe="fused",
                        dtype="bfloat16",
                        evidence=evidence(float(random.uniform(0.5, 1.0))),
                        profile=profile(random),
                    )
                )
    findings = []
    for place in np.linspace(len(judgements) // 2, len(judgements) - 1, FAULTS, dtype=int):
        judgement = replace(
            judgements[place], verdict=Verdict.DIVERGENT, arm=Arm.MAX, evidence=evidence(40.0), rank=3
        )
        judgements[place] = judgement
        findings.append(
            Finding(
                **{
                    name: getattr(judgement, name) for name in ("module", "candidate_module", "check", "into")
                },
                path=judgement.path,
                verdict=Verdict.DIVERGENT,
                arm=Arm.MAX,
                summary="a made-up fault",
                evidence=judgement.evidence,
                rank=3,
                order=judgement.order,
            )
        )
    side = {"source": "made up", "software": {"torch": "2.10"}, "parallelism": {"world_size": 4}}
    return Outcome(
        verdict=Verdict.DIVERGENT,
        findings=tuple(findings),
        judgements=tuple(judgements),
        distribution={
            "positions": 4096,
            "kl": {"mean": 1e-3, "max": 0.2},
            "kl_noise_floor": 6e-4,
            "top1_agreement": 0.99,
        },
        output=output(random),
        run={"reference": side, "candidate": {**side, "source": "tp=4"}},
    )


def evidence(over_band: float) -> Evidence:
    """Return the figures behind a judgement."""
    return Evidence(
        max_over_band=over_band,
        gain=1e-5,
        z=1.2,
        ulp_error_max=over_band,
        outside=int(over_band > 1),
        elements=1 << 21,
        worst_index=(0, 9, 40),
        reference=0.5,
        candidate=0.51,
        worst_allowed_ulp=0.6,
        shape=(1, 512, 4096),
        dims=("batch", "token", "channel"),
    )


def profile(random: np.random.Generator) -> Profile:
    """Return a profile of the greatest length."""

    def numbers(*shape: int) -> tuple[float, ...]:
        drawn: tuple[float, ...] = tuple(random.lognormal(-1.0, 0.3, shape).tolist())
        return drawn

    def line(axis: str, dim: int | None, size: int, bins: int) -> Line:
        return Line(
            axis=axis,
            dim=dim,
            size=size,
            starts=tuple(range(0, size, size // bins)),
            largest=numbers(bins),
            rms=numbers(bins),
            counts=(4096,) * bins,
        )

    rows = tuple(numbers(9) for _ in range(5))
    return Profile(
        unit=Unit.BAND,
        largest=0.9,
        rms=0.3,
        lines=(line("token", 1, 512, BINS), line("channel", 2, 4096, BINS), line("rank", None, 4, 4)),
        ulp_counts=tuple(random.integers(0, 1 << 16, len(ULP_EDGES) + 2).tolist()),
        sample=Sample(oracle=numbers(SAMPLED), candidate=numbers(SAMPLED), error=numbers(SAMPLED)),
        window=Window(start=(0, 7, 36), worst=(0, 9, 40), oracle=rows, candidate=rows, allowed=rows),
    )


def output(random: np.random.Generator) -> OutputProfile:
    """Return the KL of 8 sequences of 512 tokens."""
    top = tuple((int(token), 0.2) for token in random.integers(0, 32000, 5))
    places = tuple((sequence, token) for sequence in range(8) for token in range(512))
    worst = tuple(Position(place=place, kl=0.2, reference=top, candidate=top[::-1]) for place in places[:10])
    return OutputProfile(places=places, kl=tuple(random.exponential(1e-3, len(places)).tolist()), worst=worst)


def opened(path: Path) -> tuple[float | None, float | None]:
    """Return the seconds until the page says that it is ready, by the clock and by its thread's processor.

    None where no browser is there.
    """
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None, None
    if chromium is None:
        return None, None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        devtools = page.context.new_cdp_session(page)
        devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
        start = time.perf_counter()
        page.goto(path.resolve().as_uri())
        page.wait_for_selector("html[data-ready=true]", state="attached")
        taken = time.perf_counter() - start
        metrics = {one["name"]: one["value"] for one in devtools.send("Performance.getMetrics")["metrics"]}
        browser.close()
    return taken, metrics["TaskDuration"]


if __name__ == "__main__":
    sys.exit(main())

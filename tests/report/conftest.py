"""Outcomes built by hand, as a run of a small model on two ranks would give them."""

from dataclasses import replace

import pytest

from validator.checks.findings import (
    Arm,
    Check,
    Evidence,
    Finding,
    Judgement,
    Outcome,
    Signature,
    Unchecked,
    Unobservable,
    Verdict,
)

MESH = {"axes": ["dp", "tp"], "shape": [1, 2], "ranks": [0, 1]}
RUN = {
    "command": "validator check port.py --nproc 2",
    "reference": {"source": "tiny-dense/", "hardware": [{"rank": 0}], "parallelism": {"world_size": 1}},
    "candidate": {"source": "tp2/", "parallelism": {"world_size": 2, "meshes": [MESH]}},
}
DISTRIBUTION = {
    "positions": 512,
    "kl": {"mean": 1.24e-4, "max": 3.1e-3},
    "kl_reverse": {"mean": 1.31e-4, "max": 2.96e-3},
    "kl_noise_floor": 6.02e-4,
    "kl_storage_floor": 1.1e-5,
    "top1_agreement": 511 / 512,
    "flips": {"count": 1, "explained": 1, "expected": 0.62, "p_value": 0.46},
}

EPSILON = Unobservable(
    module="model.norm",
    what="epsilon 1e-06 x10",
    why="it is far below what it is added to",
    propose="tokens whose mean square is about 1e-06",
    smallest=512.5,
)


def judgement(module: str, check: Check, order: int, verdict: Verdict = Verdict.ALIGNED) -> Judgement:
    return Judgement(
        module=module,
        candidate_module=module,
        check=check,
        verdict=verdict,
        order=order,
        evidence=Evidence(max_over_band=0.71, elements=2048),
        recipe=None if check is Check.PARAMETER else "fused",
        dtype="bfloat16",
        smallest_gain=None if check is Check.PARAMETER else 2.5e-4,
    )


def judgements() -> tuple[Judgement, ...]:
    """One parameter, one function and one wiring judgement for each of 4 layers."""
    return tuple(
        judgement(f"model.layers.{layer}.{module}", check, 3 * layer + i)
        for layer in range(4)
        for i, (module, check) in enumerate(
            (
                ("mlp.down_proj.weight", Check.PARAMETER),
                ("mlp.down_proj", Check.FUNCTION),
                ("mlp", Check.WIRING),
            )
        )
    )


@pytest.fixture
def aligned() -> Outcome:
    return Outcome(
        verdict=Verdict.ALIGNED,
        findings=(),
        judgements=judgements(),
        unobservable=(
            EPSILON,
            replace(EPSILON, module="model.layers.0.norm"),
            Unobservable(
                module="", what="bias left out", why="all its values are 0", propose="another checkpoint"
            ),
        ),
        distribution=DISTRIBUTION,
        run=RUN,
    )


def finding(module: str = "model.layers.2.mlp.down_proj") -> Finding:
    return Finding(
        module=module,
        candidate_module=module,
        check=Check.FUNCTION,
        verdict=Verdict.DIVERGENT,
        arm=Arm.MAX,
        summary="30 elements are outside the band, all in channel 40.",
        evidence=Evidence(
            max_over_band=4.44,
            ulp_error_max=4.0,
            worst_index=(1, 9, 40),
            reference=0.81640625,
            candidate=0.83203125,
            outside=30,
            elements=2048,
            worst_allowed_ulp=0.9,
            shape=(2, 16, 64),
            dims=("batch", "token", "channel"),
        ),
        rank=1,
        where={"tokens": [0, 1, 2, 3, 9], "channels": [40]},
        recipe="fused",
        signature=Signature(kind="factor", parameters={"factor": 1.02}, residual_ulp=0.4),
        order=7,
    )


def wiring_finding() -> Finding:
    return replace(
        finding("model.layers.3.self_attn"),
        check=Check.WIRING,
        into="model.layers.3.self_attn.o_proj",
        path="input",
        arm=Arm.GAIN,
        summary="What enters o_proj is off by one factor.",
        evidence=Evidence(gain=-5.1e-4, z=-31.4, elements=2048, outside=0),
        rank=None,
        where={},
        signature=None,
        order=10,
    )


@pytest.fixture
def divergent() -> Outcome:
    """A run whose down projection of layer 2 is wrong on rank 1, and another edge after it."""
    return Outcome(
        verdict=Verdict.DIVERGENT,
        findings=(finding(), wiring_finding()),
        judgements=tuple(
            replace(j, verdict=Verdict.DIVERGENT, rank=1)
            if (j.module, j.check) == ("model.layers.2.mlp.down_proj", Check.FUNCTION)
            else j
            for j in judgements()
        ),
        distribution=DISTRIBUTION,
        run=RUN,
    )


@pytest.fixture
def inconclusive() -> Outcome:
    return Outcome(
        verdict=Verdict.INCONCLUSIVE,
        findings=(),
        judgements=judgements(),
        unchecked=tuple(Unchecked(module=f"model.layers.{i}.attn", why="it never fired") for i in range(5)),
        why_inconclusive=("model.layers.0.attn has parameters and was judged by no check",),
        notes=("the candidate alone has model.extra",),
    )


@pytest.fixture
def undeclared() -> Outcome:
    found = replace(finding(), verdict=Verdict.UNDECLARED_PRECISION, recipe="eager", signature=None)
    return Outcome(verdict=Verdict.UNDECLARED_PRECISION, findings=(found,), judgements=judgements(), run=RUN)

"""Every port that is split over ranks, healthy and with faults, each with what must be named first."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from tests.parallel import data_ports as data
from tests.parallel import expert_ports as experts
from tests.parallel import ports_names as names
from tests.parallel import ports_sequences as sequences
from tests.parallel import ports_stages as stages
from tests.parallel import ports_tokens as tokens
from tests.parallel import spoils
from tests.parallel import tensor_ports as tensors
from tests.parallel.ports import Port, Spoil
from tests.parallel.spoils import LAYER, RANK, named
from tests.planted.routing import FAULTS as ROUTING
from tests.stimuli import change_weights
from validator.checks.findings import Verdict
from validator.report.result import Result

__all__ = ["CASES", "FAULTY", "HEALTHY", "Guilty", "PortCase"]

Guilty = tuple[str, str | None, int | None]
"""The module that must be named first, the child that it leads into, and the rank; None where none is."""

LAYER_NAME = f"model.layers.{LAYER}"
ATTENTION, MLP = f"{LAYER_NAME}.self_attn", f"{LAYER_NAME}.mlp"


@dataclass(frozen=True, slots=True, kw_only=True)
class PortCase:
    """A port to judge.

    Attributes:
        kind: of parallelism.
        name: no other case of the kind has it.
        port: what runs.
        spoil: plants a fault, or None.
        guilty: what must be named first, or None for a healthy port.
        spoilt: what the names of all modules with a finding begin with; by default the guilty one's.
        signature: kind of the signature that the first finding must have, or None for any.
        verdict: of a faulty port.
    """

    kind: str
    name: str
    port: Port
    spoil: Spoil | None = None
    guilty: Guilty | None = None
    spoilt: str | None = None
    signature: str | None = None
    verdict: Verdict = Verdict.DIVERGENT

    @property
    def is_faulty(self) -> bool:
        """Whether anything is wrong with it; what is spoilt may be the port itself."""
        return self.guilty is not None

    @property
    def label(self) -> str:
        """A name that no other case has."""
        return f"ranks-{self.kind}-{self.name}".replace(" ", "-")

    def mistake(self, result: Result) -> str:
        """Say what a result of a faulty port gets wrong, or ""."""
        assert self.guilty is not None
        if not result.findings:
            return "nothing was found"
        found = result.findings[0]
        if (found.module, found.into, found.rank) != self.guilty:
            return f"blamed {(found.module, found.into, found.rank)}, not {self.guilty}"
        kind = None if found.signature is None else found.signature.kind
        if self.signature not in (None, kind):
            return f"called it {kind}, not {self.signature}"
        if result.verdict is not self.verdict:
            return f"the verdict is {result.verdict}, not {self.verdict}"
        spoilt = self.guilty[0] if self.spoilt is None else self.spoilt
        innocent = [finding for finding in result.findings if not finding.module.startswith(spoilt)]
        return f"also blamed: {innocent[0].summary}" if innocent else ""


def _routed() -> Iterator[PortCase]:
    """Yield the faults of routers, planted on all ranks of a port whose experts are split by transformers."""
    for fault in ROUTING:
        (edge,) = fault.guilty
        yield PortCase(
            kind="routed expert",
            name=fault.fault,
            port=Port(
                family=fault.families[0],
                ranks=2,
                distributed=experts.PLANNED.distributed,
                fill=partial(change_weights, stimulus=fault.stimulus),
            ),
            spoil=named(f"{fault.fault}:layer={LAYER}"),
            guilty=(edge.module.format(layer=LAYER), None, None),
            signature=fault.signature,
            verdict=fault.verdict,
        )


HEALTHY = tuple(
    PortCase(kind=kind, name=name, port=port)
    for kind, ports in {
        "tensor": {
            "planned-dense-4-bfloat16": tensors.planned("tiny-dense", 4, "bfloat16"),
            "planned-dense-4-float32": tensors.planned("tiny-dense", 4, "float32"),
            "planned-moe-4-bfloat16": tensors.planned("tiny-moe", 4, "bfloat16"),
            "planned-moe-2-float32": tensors.planned("tiny-moe", 2, "float32"),
            "two-key-heads-on-four-ranks": tensors.COPIED_HEADS,
            "one-key-head-on-four-ranks": tensors.ONE_HEAD,
            "norms-over-all-heads": tensors.WIDE_NORMS,
            "sums-left-to-the-caller": tensors.LATE_SUMS,
            "dtensors": tensors.DTENSORS,
        },
        "expert": {
            "planned": experts.PLANNED,
            "planned-sorted-by-expert": experts.PLANNED_SORTED,
            "planned-sorted-with-groups-and-a-shared-expert": experts.PLANNED_GROUPS,
            "planned-and-sent": experts.PLANNED_SENT,
            "summed": experts.SUMMED,
            "summed-with-a-shared-expert": experts.SHARED,
            "sent": experts.SENT,
            "sent-with-an-idle-rank": experts.IDLE_RANK,
            "experts-and-tensors": experts.SUMMED_TENSORS,
            "data-and-experts": experts.DATA_EXPERTS,
        },
        "data": {
            "fed-by-rank": data.DATA,
            "split-by-a-wrapper": data.WRAPPED_DATA,
            "data-and-tensors": data.DATA_TENSORS,
        },
        "pipeline": {
            "own-sends-and-layer-numbers": stages.pipeline_port(3, 1),
            "a-model-cut-by-hand": stages.cut_port(1, 2),
            "torch's-1f1b": stages.pipeline_port(3, 1, schedule="1f1b"),
            "torch's-gpipe-of-tensor-parallel-stages": stages.pipeline_port(1, 2, schedule="gpipe", tp=2),
        },
        "context": {
            "contiguous": tokens.context_port("contiguous"),
            "packed-told-by-ids": tokens.context_port("packed"),
            "zigzag-with-experts": tokens.context_port("zigzag", family="qwen3-moe"),
            "positions-of-images": tokens.MULTIMODAL,
        },
        "sequence": {"own-tokens": sequences.OWN_TOKENS, "a-shared-expert": sequences.SHARED_EXPERT},
    }.items()
    for name, port in ports.items()
)

FAULTY = (
    PortCase(
        kind="tensor",
        name="one-rank's-term-scaled",
        port=tensors.COPIED_HEADS,
        spoil=named(f"tp-partial-scale:layer={LAYER},factor=1.02,rank=2"),
        guilty=(f"{MLP}.down_proj", None, 2),
        signature="factor",
    ),
    PortCase(
        kind="tensor",
        name="no-sum",
        port=tensors.COPIED_HEADS,
        spoil=named(f"tp-not-reduced:layer={LAYER}"),
        guilty=(f"{MLP}.down_proj", None, None),
        signature="missing_reduction",
    ),
    PortCase(
        kind="tensor",
        name="summed-twice",
        port=tensors.COPIED_HEADS,
        spoil=named(f"tp-reduced-twice:layer={LAYER}"),
        guilty=(f"{MLP}.down_proj", None, None),
        signature="double_reduction",
    ),
    PortCase(
        kind="tensor",
        name="another-key-head",
        port=tensors.COPIED_HEADS,
        spoil=spoils.key_head_of_others,
        guilty=(f"{ATTENTION}.k_proj", None, RANK),
    ),
    PortCase(
        kind="tensor",
        name="the-norm-of-another-key-head",
        port=tensors.WIDE_NORMS,
        spoil=spoils.key_norm_of_others,
        guilty=(f"{ATTENTION}.k_norm", None, RANK),
    ),
    PortCase(
        kind="tensor",
        name="a-fused-weight-cut-in-one-piece",
        port=Port(family="qwen2", ranks=2, shard=names.engine_part),
        spoil=names.cut_in_one_piece,
        guilty=(f"{ATTENTION}.q_proj", None, RANK),
        signature="layout",
        spoilt=ATTENTION,
    ),
    PortCase(
        kind="tensor",
        name="no-sum-in-the-caller",
        port=tensors.LATE_SUMS,
        spoil=spoils.unsummed_attention,
        guilty=(f"{ATTENTION}.o_proj", None, None),
        signature="missing_reduction",
    ),
    PortCase(
        kind="expert",
        name="a-map-off-by-one",
        port=experts.SUMMED,
        spoil=spoils.last_map_off_by_one,
        guilty=(MLP, None, RANK),
        signature="experts",
    ),
    PortCase(
        kind="expert",
        name="another-expert-of-the-rank",
        port=experts.SENT,
        spoil=spoils.last_map_off_by_one,
        guilty=(MLP, None, RANK),
        signature="experts",
    ),
    PortCase(
        kind="expert",
        name="answers-in-another-order",
        port=experts.SENT,
        spoil=spoils.mixed_up_answers,
        guilty=(MLP, None, RANK),
    ),
    PortCase(
        kind="expert",
        name="a-sum-of-different-tokens",
        port=experts.SUMMED,
        spoil=spoils.rolled_tokens,
        guilty=(MLP, None, RANK),
    ),
    PortCase(
        kind="expert",
        name="one-rank's-term-scaled",
        port=experts.SUMMED,
        spoil=spoils.scaled_experts,
        guilty=(MLP, None, RANK),
        signature="wrong_term",
    ),
    PortCase(
        kind="expert",
        name="one-sum-of-two",
        port=experts.SUMMED_TENSORS,
        spoil=spoils.one_sum_of_two,
        guilty=(f"{MLP}.experts", None, None),
        signature="missing_reduction",
    ),
    PortCase(
        kind="expert",
        name="a-shared-expert-counted-twice",
        port=experts.SHARED,
        spoil=spoils.overcounted_shared_expert,
        guilty=(MLP, None, None),
    ),
    *_routed(),
    PortCase(
        kind="data",
        name="one-rank's-norm",
        port=data.DATA,
        spoil=named(f"norm-eps:layer={LAYER},eps=0.3,rank=1"),
        guilty=(f"{LAYER_NAME}.input_layernorm", None, 1),
    ),
    PortCase(
        kind="data",
        name="one-rank's-term-scaled",
        port=data.DATA_TENSORS,
        spoil=spoils.scaled_term,
        guilty=(f"{MLP}.down_proj", None, 3),
    ),
    PortCase(
        kind="pipeline",
        name="weights-of-the-first-layers",
        port=stages.pipeline_port(2, 1, load=stages.second_stage_first_layers),
        guilty=("model.layers.2.self_attn.q_proj", None, 1),
        spoilt="model.layers.2.",
        signature="other_parameter",
    ),
    PortCase(
        kind="pipeline",
        name="handed-on-in-a-narrow-format",
        port=stages.pipeline_port(2, 1),
        spoil=stages.handed_on_narrow,
        guilty=("model", "model.layers.2", 1),
        signature="narrower_format",
    ),
    PortCase(
        kind="pipeline",
        name="micro-batches-exchanged",
        port=stages.pipeline_port(2, 1),
        spoil=stages.parts_swapped,
        guilty=("model", "model.layers.2", 1),
        signature="shifted",
    ),
    PortCase(
        kind="pipeline",
        name="one-rank's-term-scaled",
        port=stages.pipeline_port(1, 1, tp=2),
        spoil=stages.partial_scaled,
        guilty=("model.layers.1.mlp.down_proj", None, 3),
    ),
    PortCase(
        kind="pipeline",
        name="masks-by-the-number-on-the-stage",
        port=stages.cut_port(1, 2, family="gemma2", kernel="eager"),
        spoil=stages.masks_by_own_number,
        guilty=("model.layers.1.self_attn", "model.layers.1.self_attn.o_proj", 1),
        spoilt="model.layers.",
    ),
    PortCase(
        kind="context",
        name="a-mask-wrong-at-the-boundary",
        port=tokens.context_port("zigzag"),
        spoil=tokens.boundary_masked,
        guilty=(ATTENTION, f"{ATTENTION}.o_proj", 1),
    ),
    PortCase(
        kind="context",
        name="positions-of-another-split",
        port=tokens.context_port("interleaved"),
        spoil=tokens.positions_contiguous,
        guilty=("model.rotary_emb", None, None),
    ),
    PortCase(
        kind="context",
        name="positions-that-begin-anew",
        port=tokens.context_port("packed"),
        spoil=tokens.positions_restart,
        guilty=("model.rotary_emb", None, None),
    ),
    PortCase(
        kind="context",
        name="positions-of-images-dealt-by-sequence",
        port=tokens.MULTIMODAL,
        spoil=tokens.positions_along_sequences,
        guilty=("model.language_model.rotary_emb", None, 1),
    ),
    PortCase(
        kind="sequence",
        name="sums-scattered-to-other-ranks",
        port=sequences.OWN_TOKENS,
        spoil=sequences.scattered_in_turn,
        guilty=(f"{ATTENTION}.o_proj", None, None),
        signature="layout",
    ),
    PortCase(
        kind="sequence",
        name="own-tokens-with-own-channels-alone",
        port=sequences.OWN_TOKENS,
        spoil=sequences.not_gathered,
        guilty=(MLP, None, None),
    ),
    PortCase(
        kind="sequence",
        name="a-shared-expert-on-own-tokens",
        port=sequences.SHARED_EXPERT,
        spoil=sequences.shared_expert_by_token,
        guilty=(f"{MLP}.shared_expert", None, None),
    ),
    PortCase(
        kind="sequence",
        name="one-rank's-term-scaled",
        port=sequences.OWN_TOKENS,
        spoil=sequences.partial_scaled,
        guilty=(f"{MLP}.down_proj", None, 1),
    ),
)

CASES = (*HEALTHY, *FAULTY)

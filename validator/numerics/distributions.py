"""How far apart two models' next-token distributions are, and how much of that logit noise explains.

Everything is computed in float64, in blocks of positions, so that memory is O(block * V).

Shape legend: N = positions, V = vocabulary, B = positions of one block.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from validator.errors import ComparisonError
from validator.numerics.flips import Flips, judge_flips
from validator.numerics.formats import Format, format_of
from validator.numerics.perplexity import Perplexity, compare_perplexity
from validator.numerics.positions import IGNORED_TARGET, has_distribution, position_figures, storage_variance
from validator.numerics.spreads import Spread, clustered_se, jsonable, spread_of

__all__ = ["DistributionFigures", "WorstPosition", "compare_logits"]

LISTED_POSITIONS = 10
_BLOCK_ELEMENTS = 1 << 17  # of [B, V]: a float64 temporary takes 1 MiB, or one position's


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstPosition:
    """A position among those with the greatest KL(p || q)."""

    position: int
    kl: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionFigures:
    """The distance between two models' distributions, p of the reference and q of the candidate.

    Attributes:
        positions: positions compared: those where the reference has a distribution.
        undefined: of them, those where the candidate has none (NaN, +inf, or everything masked). They
            count as infinitely far (KL) or as far as can be (the bounded figures).
        kl: KL(p || q) in nats; `kl_reverse` is KL(q || p).
        kl_se: standard error of the mean of `kl`, clustered by sequence; None with fewer than two sequences.
        kl_noise_floor: the mean KL that logit noise alone leads one to expect; a KL below it says nothing.
        kl_storage_floor: the part of it that storing both sides' logits in their formats makes by itself.
        js: Jensen-Shannon divergence in nats, at most ln 2.
        total_variation: half the L1 distance, at most 1.
        top1_agreement: fraction of positions where both prefer the same token; `top1_agreement_se` is its
            standard error, clustered by sequence.
        top_k_overlap: mean fraction of the `top_k` tokens that both sides share.
        rms_probability_change: root mean square of q - p at the reference's preferred token.
        margin_p50: median over positions of the reference's logit margin of its first token over its second.
        worst: positions with the greatest KL, greatest first.
        perplexity: None without targets that the reference gives any probability.
    """

    positions: int
    undefined: int
    kl: Spread
    kl_reverse: Spread
    kl_se: float | None
    kl_noise_floor: float
    kl_storage_floor: float
    js: Spread
    total_variation: Spread
    top1_agreement: float
    top1_agreement_se: float | None
    top_k: int
    top_k_overlap: float
    rms_probability_change: float
    margin_p50: float
    flips: Flips
    worst: tuple[WorstPosition, ...]
    perplexity: Perplexity | None

    def to_json(self) -> dict[str, Any]:
        """Give the figures as JSON values; infinity, which JSON lacks, becomes the string `"inf"`."""
        return {name: jsonable(value) for name, value in asdict(self).items()}


def compare_logits(
    *,
    ref: Tensor,
    cand: Tensor,
    cand_format: Format,
    ref_format: Format | None = None,
    top_k: int = 5,
    groups: Tensor | None = None,
    targets: Tensor | None = None,
    logit_sigma: Tensor | float | None = None,
    lam: float | None = None,
) -> DistributionFigures:
    """Compare next-token logits, position by position.

    Args:
        ref: `[N, V]` reference logits, any floating dtype; -inf where a token is masked.
        cand: `[N, V]` candidate logits, any floating dtype.
        cand_format: format in which the candidate stored its logits, before any conversion.
        ref_format: the same of the reference; None is that of the dtype of `ref`.
        top_k: how many tokens `top_k_overlap` looks at; at most V.
        groups: `[N]` integer, the sequence of each position; None takes every position for independent.
        targets: `[N]` integer, the token that follows each position, or -100 where there is none.
        logit_sigma: standard deviation of `cand - ref` by rounding: one number, `[N]` or `[N, V]`.
            None is the storage rounding of both sides alone, ulp/sqrt(12) each; then flips are judged one
            by one, but not their number.
        lam: standard deviations of a margin that explain a flip; None is sqrt(2 ln(2N / 1e-3)).

    Returns:
        The figures. No position is left out for what the candidate holds there.

    Raises:
        ComparisonError: shapes do not fit, a dtype or target is not legal, or the reference has no
            distribution at any position: nothing could be compared.
    """
    _demand_legal(ref, cand, top_k, groups, targets, logit_sigma)
    ref_format = format_of(ref.dtype) if ref_format is None else ref_format
    parts: list[Mapping[str, Tensor]] = []
    for rows in _blocks(*ref.shape):
        logits_ref = ref[rows].detach().to(torch.float64)
        kept = torch.nonzero(has_distribution(logits_ref)).squeeze(-1)
        logits_ref = logits_ref[kept]
        logits_cand = cand[rows].detach()[kept].to(torch.float64)
        storage = storage_variance(logits_ref, ref_format) + storage_variance(logits_cand, cand_format)
        variance = storage
        if logit_sigma is not None:
            variance = _rows_of(logit_sigma, rows, kept).square().expand_as(logits_ref)
        figures = position_figures(
            ref=logits_ref,
            cand=logits_cand,
            variance=variance,
            storage=storage,
            top_k=top_k,
            targets=None if targets is None else targets[rows][kept],
        )
        parts.append({"position": kept + rows.start, **figures})
    columns = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    if columns["position"].numel() == 0:
        raise ComparisonError(
            f"the reference has no distribution at any of its {ref.shape[0]} positions (NaN, +inf or "
            "everything masked): nothing can be compared. Look at the reference's own run"
        )
    return _summary(columns, top_k, groups, lam, storage_only=logit_sigma is None)


def _summary(
    columns: Mapping[str, Tensor],
    top_k: int,
    groups: Tensor | None,
    lam: float | None,
    *,
    storage_only: bool,
) -> DistributionFigures:
    position, kl = columns["position"], columns["kl"]
    clusters = None if groups is None else groups[position]
    agreed = (~columns["flipped"]).to(torch.float64)
    perplexity = None
    if "has_target" in columns:
        targeted = columns["has_target"]
        perplexity = compare_perplexity(
            nll_ref=columns["nll_ref"][targeted],
            nll_cand=columns["nll_cand"][targeted],
            groups=None if clusters is None else clusters[targeted],
        )
    worst = torch.topk(kl, min(LISTED_POSITIONS, kl.numel()))
    return DistributionFigures(
        positions=position.numel(),
        undefined=int(columns["undefined"].sum()),
        kl=spread_of(kl),
        kl_reverse=spread_of(columns["kl_reverse"]),
        kl_se=clustered_se(kl, clusters),
        kl_noise_floor=float(columns["kl_noise_floor"].mean()),
        kl_storage_floor=float(columns["kl_storage_floor"].mean()),
        js=spread_of(columns["js"]),
        total_variation=spread_of(columns["total_variation"]),
        top1_agreement=float(agreed.mean()),
        top1_agreement_se=clustered_se(agreed, clusters),
        top_k=top_k,
        top_k_overlap=float(columns["top_k_overlap"].mean()),
        rms_probability_change=float(columns["probability_change"].square().mean().sqrt()),
        margin_p50=float(columns["runner_up_margin"].median()),
        flips=judge_flips(
            choice_ref=columns["choice_ref"],
            choice_cand=columns["choice_cand"],
            margin=columns["margin"],
            flipped=columns["flipped"],
            sigmas=columns["flip_sigmas"],
            probability=columns["overtaking"],
            positions=position,
            lam=lam,
            storage_only=storage_only,
        ),
        worst=tuple(
            WorstPosition(position=int(position[row]), kl=float(kl[row])) for row in worst.indices.tolist()
        ),
        perplexity=perplexity,
    )


def _rows_of(logit_sigma: Tensor | float, rows: slice, kept: Tensor) -> Tensor:
    """The part of the caller's sigma that belongs to a block, ready to broadcast to `[B, V]`."""
    sigma = torch.as_tensor(logit_sigma, dtype=torch.float64, device=kept.device)
    if sigma.ndim == 0:
        return sigma
    sigma = sigma[rows][kept]
    return sigma[:, None] if sigma.ndim == 1 else sigma


def _blocks(positions: int, vocabulary: int) -> Iterator[slice]:
    size = max(1, _BLOCK_ELEMENTS // vocabulary)
    for start in range(0, positions, size):
        yield slice(start, start + size)


def _demand_legal(
    ref: Tensor,
    cand: Tensor,
    top_k: int,
    groups: Tensor | None,
    targets: Tensor | None,
    logit_sigma: Tensor | float | None,
) -> None:
    if ref.ndim != 2 or ref.shape != cand.shape:
        raise ComparisonError(
            f"ref has shape {list(ref.shape)} and cand has shape {list(cand.shape)}: logits are compared as "
            "[positions, vocabulary], equal on both sides. Flatten batch and sequence first"
        )
    for name, side in (("ref", ref), ("cand", cand)):
        if not side.dtype.is_floating_point:
            raise ComparisonError(f"{name} is {side.dtype}: logits are floating")
    positions, vocabulary = ref.shape
    if ref.numel() == 0:
        raise ComparisonError(f"logits of shape {list(ref.shape)} hold nothing to compare")
    if not 1 <= top_k <= vocabulary:
        raise ComparisonError(f"top_k is {top_k!r}: legal are 1 to the vocabulary's {vocabulary}")
    for name, values in (("groups", groups), ("targets", targets)):
        if values is not None and (tuple(values.shape) != (positions,) or values.dtype.is_floating_point):
            raise ComparisonError(
                f"{name} is {values.dtype} of shape {list(values.shape)}: give one integer for each of the "
                f"{positions} positions"
            )
    if targets is not None:
        wrong = targets[(targets != IGNORED_TARGET) & ((targets < 0) | (targets >= vocabulary))]
        if wrong.numel():
            raise ComparisonError(
                f"target {int(wrong[0])} is no token of a vocabulary of {vocabulary}; positions without a "
                f"target hold {IGNORED_TARGET}"
            )
    sigma_shape = tuple(logit_sigma.shape) if isinstance(logit_sigma, Tensor) else ()
    if sigma_shape not in ((), (positions,), (positions, vocabulary)):
        raise ComparisonError(
            f"logit_sigma has shape {list(sigma_shape)}: legal are one number, [{positions}] and "
            f"[{positions}, {vocabulary}]"
        )

"""The verdict on one edge: EXACT, CLASS, MAX and GAIN (NUMERICS section 5).

Shape legend: * = the edge's shape; N = judged elements.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from validator.checks.findings import Arm, Evidence
from validator.checks.roundings import Constant
from validator.numerics.bands import C, normal_lambda, tail_lambda
from validator.numerics.formats import FORMATS, Format, format_of
from validator.numerics.gain import Gain, gain, slice_gains
from validator.numerics.rounding import round_nearest
from validator.numerics.ulp import ulp

__all__ = [
    "GAIN_Z",
    "MINIMUM_DIFFERING",
    "Assessment",
    "Band",
    "Bench",
    "as_cast_by_device",
    "class_differs",
    "gain_floor",
    "judge_constant",
    "judge_edge",
    "judge_equal",
    "magnitudes",
    "rows_of",
    "selected_values",
]

MEASURED_FACTOR = 1.4
"""How much wider lambda is where sigma is measured by a few stochastic runs.

With K = 12 runs shrunk with weight 8, sigma has a relative error of about 16%, and the sums behind
it have heavier tails than a normal distribution: healthy ports reach 1.04 (benchmarks/README.md).
"""

GAIN_Z = 6.0
"""A gain counts from here on: one false alarm in 1e9 tests."""

MINIMUM_DIFFERING = 50
"""Below so many elements that differ from the control, its gain says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """What rounding explains: `ulp/2 + bound + lambda*sigma`.

    Attributes:
        sigma: `[*]` float64 or 0: standard deviation before the last rounding.
        bound: `[*]` float64 or 0: hard bound on coherent errors.
        is_measured: whether sigma comes from stochastic runs.
        coherent: relative error that the whole edge may share, within the bound.
        has_tails: whether the errors are those of sums that are stored as wide as they are accumulated, whose
            distribution has exponential tails.
    """

    sigma: Tensor | float = 0.0
    bound: Tensor | float = 0.0
    is_measured: bool = False
    coherent: float = 0.0
    has_tails: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What is the same for every edge of a run.

    Attributes:
        elements: how many elements the whole run judges, which sets lambda.
    """

    elements: int

    def multiplier(self, band: Band) -> float:
        """Return lambda."""
        if band.has_tails:
            return tail_lambda(self.elements)
        return normal_lambda(self.elements) * (MEASURED_FACTOR if band.is_measured else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What the rules say of one edge under one recipe.

    Attributes:
        arm: the rule that fired, or None where rounding explains the edge.
        evidence: the figures.
        outside: `[n, dims]` int64 indices of the guilty elements (all of a guilty slice for GAIN).
        note: why part of the judgement was not possible, or "".
        undecided: how many elements are explained only because rounding may decide them altogether, those
            that are NaN in noisy runs included.
        constant: the number in the code that seems to be off, where GAIN fired on it.
    """

    arm: Arm | None
    evidence: Evidence
    outside: Tensor
    note: str = ""
    undecided: int = 0
    constant: Constant | None = None


def judge_equal(*, exact: Tensor, cand: Tensor, judged: Tensor | None, dims: tuple[str, ...]) -> Assessment:
    """Judge values that no arithmetic came between: any differing value diverges.

    Args:
        exact: `[*]` float64, integer or boolean: what the reference passes on.
        cand: `[*]` in the candidate's dtype.
        judged: `[*]` boolean, or None for all.
        dims: meaning of each dim.
    """
    candidate = cand.to(torch.float64) if cand.is_floating_point() else cand
    differs = candidate != exact
    if candidate.is_floating_point():
        differs &= ~(candidate.isnan() & exact.isnan())
    if judged is not None:
        differs &= judged
    outside = differs.nonzero()
    count = int(differs.numel() if judged is None else judged.sum())
    evidence = Evidence(outside=len(outside), elements=count, shape=tuple(cand.shape), dims=dims)
    if not len(outside):
        return Assessment(arm=None, evidence=evidence, outside=outside)
    error = (
        (candidate.to(torch.float64) - exact.to(torch.float64))
        .abs()
        .masked_fill(~differs, -1.0)
        .nan_to_num(math.inf)
    )
    worst = _unravel(int(error.argmax()), cand.shape)
    spacing = (
        float(ulp(exact[worst].to(torch.float64), format_of(cand.dtype)))
        if cand.is_floating_point()
        else None
    )
    evidence = Evidence(
        max_over_band=math.inf,
        ulp_error_max=float(error.max()) / spacing if spacing else None,
        worst_index=worst,
        reference=float(exact[worst]),
        candidate=float(candidate[worst]),
        outside=len(outside),
        elements=count,
        worst_allowed_ulp=0.0,
        shape=tuple(cand.shape),
        dims=dims,
    )
    return Assessment(arm=Arm.EXACT, evidence=evidence, outside=outside)


def judge_edge(
    *,
    exact: Tensor,
    cand: Tensor,
    band: Band,
    control: Tensor | None,
    judged: Tensor | None,
    dims: tuple[str, ...],
    bench: Bench,
) -> Assessment:
    """Judge a computed edge against the oracle.

    Args:
        exact: `[*]` float64, the oracle's value `y64`.
        cand: `[*]` in the candidate's floating dtype.
        band: what rounding explains.
        control: `[*]` float64, the reference's own code under the same recipe, rounded to the candidate's
            format; None to round the oracle's value (an edge behind a single operator).
        judged: `[*]` boolean, or None for all.
        dims: meaning of each dim.
        bench: what is common to the run.

    Returns:
        The first rule that fires, in the order CLASS, MAX, GAIN.
    """
    fmt = format_of(cand.dtype)
    selected = torch.ones(cand.shape, dtype=torch.bool) if judged is None else judged.expand(cand.shape)
    where = selected.nonzero()
    y, c = exact[selected], cand[selected].to(torch.float64)
    sigma, bound = selected_values(band.sigma, selected), selected_values(band.bound, selected)
    if not y.numel():
        return Assessment(arm=None, evidence=Evidence(elements=0), outside=where, note="no element to judge")
    spacing = ulp(y, fmt)
    slack = bound + bench.multiplier(band) * sigma
    y = as_cast_by_device(y, c, fmt, spacing)
    wrong_class = class_differs(y, c, fmt, spacing, slack)
    difference = c - y
    usable = difference.isfinite() & ~wrong_class
    ratio = torch.where(usable, difference.abs() / (spacing / 2 + slack), torch.zeros_like(y))
    outside = ratio > 1
    undecided = int((usable & slack.isnan()).sum())
    g, guilty = _gains(
        y=y,
        c=c,
        spacing=spacing,
        sigma=sigma,
        coherent=band.coherent,
        control=None if control is None else control[selected],
        usable=usable,
        where=where,
        dims=dims,
        fmt=fmt,
        is_measured=band.is_measured,
    )
    arm, bad = None, torch.zeros_like(outside)
    if bool(wrong_class.any()):
        arm, bad = Arm.CLASS, wrong_class
    elif bool(outside.any()):
        arm, bad = Arm.MAX, outside
    elif guilty is not None:
        arm, bad = Arm.GAIN, guilty
    error_ulp = torch.where(usable, difference.abs() / spacing, torch.zeros_like(y))
    ratio = ratio.nan_to_num(nan=0.0, posinf=math.inf)
    worst = int(bad.nonzero()[0]) if arm is Arm.CLASS else int(ratio.argmax())
    evidence = Evidence(
        max_over_band=float(ratio.max()),
        gain=None if math.isnan(g.gain) else g.gain,
        z=None if g.abstains else g.z,
        ulp_error_max=float(error_ulp.max()),
        worst_index=tuple(where[worst].tolist()),
        reference=float(y[worst]),
        candidate=float(c[worst]),
        outside=int(bad.sum()),
        elements=y.numel(),
        worst_allowed_ulp=float((spacing[worst] / 2 + slack[worst]) / spacing[worst]),
        shape=tuple(cand.shape),
        dims=dims,
    )
    note = "" if not g.abstains else "too few independent elements for the gain test"
    return Assessment(arm=arm, evidence=evidence, outside=where[bad], note=note, undecided=undecided)


def judge_constant(
    *,
    exact: Tensor,
    cand: Tensor,
    band: Band,
    control: Tensor,
    sensitivity: Tensor,
    tried: int,
    judged: Tensor | None,
    dims: tuple[str, ...],
) -> Gain | None:
    """Estimate by which relative amount a constant of the code is off, and say whether that is a fault.

    The difference is regressed on the direction in which the edge would move with the constant: the gain test
    of section 5 with `dy / d log(constant)` in the place of `y`. It sees an attention scale that is off by 1%
    in bfloat16, where each element moves by less than the rounding of the probabilities allows.

    Args:
        exact: `[*]` float64, the oracle's value.
        cand: `[*]` in the candidate's floating dtype.
        band: what rounding explains.
        control: `[*]` float64, the reference's own code under the recipe that explains the edge.
        sensitivity: `[*]` float64, `dy / d log(constant)`.
        tried: how many constants are tried on this edge; each is one more chance of a false alarm.
        judged: `[*]` boolean, or None for all.
        dims: meaning of each dim.

    Returns:
        The gain (0.01: the constant is 1% too large) where it is a fault, else None. A constant may be
        rounded to the candidate's format, and its effect must be one that the plain gain test would count.
    """
    fmt = format_of(cand.dtype)
    selected = torch.ones(cand.shape, dtype=torch.bool) if judged is None else judged.expand(cand.shape)
    y, c, x = exact[selected], cand[selected].to(torch.float64), control[selected]
    direction = sensitivity[selected]
    usable = y.isfinite() & c.isfinite() & x.isfinite() & direction.isfinite() & (direction != 0)
    if int((usable & (c != x)).sum()) < MINIMUM_DIFFERING:
        return None
    sigma = selected_values(band.sigma, selected)[usable]
    y, c, x, direction, where = y[usable], c[usable], x[usable], direction[usable], selected.nonzero()[usable]
    weight = 1 / (ulp(y, fmt).square() / 12 + sigma.square())
    arguments = {
        "reference": direction,
        "weight": weight,
        "rows": rows_of(where, dims),
        "values": magnitudes(c, fmt),
    }
    limit = math.sqrt(GAIN_Z**2 + 2 * math.log(tried))
    own = gain(difference=c - y, **arguments)
    if own.abstains or abs(own.z) <= limit or abs(own.gain) <= fmt.unit_roundoff:
        return None
    of_control = gain(difference=c - x, **arguments)
    if of_control.abstains or abs(of_control.z) <= limit or abs(of_control.gain) <= fmt.unit_roundoff:
        return None
    share = torch.sqrt((weight * direction.square()).sum() / (weight * y.square()).sum())
    effect = min(abs(own.gain), abs(of_control.gain)) * float(share)
    return own if effect > max(gain_floor(y, sigma, fmt), band.coherent) else None


def gain_floor(y: Tensor, sigma: Tensor, fmt: Format) -> float:
    """Return the gain below which a systematic difference may be the arithmetic's own."""
    floor = fmt.unit_roundoff / 16
    if fmt.precision >= 24:
        floor = max(floor, float((sigma / y.abs().clamp_min(fmt.min_normal)).median()))
    return floor


def as_cast_by_device(y: Tensor, c: Tensor, fmt: Format, spacing: Tensor) -> Tensor:
    """Take the candidate's word for values beyond a format without infinity: NUMERICS section 1.

    Whether such a value saturates or is NaN belongs to the device that casts, not to the format.
    """
    if fmt.has_inf:
        return y
    is_over = y.abs() > fmt.max + spacing / 2
    return torch.where(is_over & (c.isnan() | (c == y.sign() * fmt.max)), c, y)


def class_differs(y: Tensor, c: Tensor, fmt: Format, spacing: Tensor, slack: Tensor) -> Tensor:
    """Tell where NaN, infinity or saturation differ from the rounded oracle, beyond what rounding decides."""
    rounded = round_nearest(y, fmt)
    differs = (rounded.isnan() != c.isnan()) | (rounded.isinf() != c.isinf())
    differs |= rounded.isinf() & c.isinf() & (rounded.sign() != c.sign())
    # Near the format's maximum a healthy result falls on either side.
    near = ((y.abs() - fmt.max - spacing / 2).abs() <= slack + spacing / 2) & (y.sign() == c.sign())
    return differs & ~(near & ~c.isnan())


def _gains(
    *,
    y: Tensor,
    c: Tensor,
    spacing: Tensor,
    sigma: Tensor,
    coherent: float,
    control: Tensor | None,
    usable: Tensor,
    where: Tensor,
    dims: tuple[str, ...],
    fmt: Format,
    is_measured: bool,
) -> tuple[Gain, Tensor | None]:
    """Run the gain test on the whole edge, then on each head and channel; return what is guilty, or None."""
    rounded = round_nearest(y, fmt) if control is None else control
    usable = usable & rounded.isfinite()
    empty = Gain(gain=math.nan, z=math.nan, clusters=0.0)
    if not bool(usable.any()):
        return empty, None
    y, c, rounded, spacing, sigma = y[usable], c[usable], rounded[usable], spacing[usable], sigma[usable]
    rows = rows_of(where[usable], dims)
    weight = 1 / (spacing.square() / 12 + sigma.square())
    values = magnitudes(c, fmt)
    floor = max(gain_floor(y, sigma, fmt), coherent)
    g = gain(difference=c - y, reference=y, weight=weight, rows=rows, values=values)
    if g.abstains or abs(g.gain) <= floor:
        whole = False
    else:
        g_control = gain(difference=c - rounded, reference=y, weight=weight, rows=rows, values=values)
        whole = (
            abs(g.z) > GAIN_Z
            and int((c != rounded).sum()) >= MINIMUM_DIFFERING
            and not g_control.abstains
            and abs(g_control.z) > GAIN_Z
            and abs(g_control.gain) > floor
        )
    guilty = torch.zeros_like(usable)
    for dim, meaning in enumerate(dims):
        if meaning not in ("head", "channel"):
            continue
        slices = torch.unique(where[usable][:, dim], return_inverse=True)[1]
        count = int(slices.max()) + 1
        if y.numel() < count * MINIMUM_DIFFERING:
            continue
        limit = math.sqrt(GAIN_Z**2 + 2 * math.log(count))
        arguments = {"reference": y, "weight": weight, "slices": slices, "rows": rows, "values": values}
        own_g, own_z = slice_gains(difference=c - y, **arguments)
        control_g, control_z = slice_gains(difference=c - rounded, **arguments)
        differing = torch.zeros(count, dtype=torch.float64).index_add_(
            0, slices, (c != rounded).to(torch.float64)
        )
        fires = (own_z.abs() > limit) & (control_z.abs() > limit) & (differing >= MINIMUM_DIFFERING)
        floors = torch.full((count,), floor, dtype=torch.float64)
        if not is_measured or fmt.precision >= FORMATS["float32"].precision:
            floors = torch.maximum(floors, _slice_floors(y, sigma, weight, slices, count))
        fires &= (own_g.abs() > floors) & (control_g.abs() > floors)
        # Where most slices fire, the fault is the whole edge's.
        if bool(fires.any()) and not (whole and int(fires.sum()) > count // 2):
            guilty[usable] = fires[slices]
            worst = int(own_z.abs().masked_fill(~fires, 0).argmax())
            slice_gain = Gain(gain=float(own_g[worst]), z=float(own_z[worst]), clusters=math.nan)
            return slice_gain, guilty
    if whole:
        guilty[usable] = True
    return g, guilty if whole else None


def _slice_floors(y: Tensor, sigma: Tensor, weight: Tensor, slices: Tensor, count: int) -> Tensor:
    """Return the gain that a kernel alone may give each slice: `[count]`.

    A polynomial in a kernel is off by the same amount wherever it is asked for the same value: where all
    of a slice's inputs are alike, as in the tail of an activation, so are its errors. `sigma / C` is the size
    of such an error.
    """
    zeros = torch.zeros(count, dtype=torch.float64)
    alike = zeros.index_add(0, slices, weight * sigma / C * y.abs())
    return alike / zeros.index_add(0, slices, weight * y.square()).clamp_min(torch.finfo(torch.float64).tiny)


def magnitudes(c: Tensor, fmt: Format) -> Tensor:
    """Return a label for each stored magnitude: of 16-bit formats the code itself, cheap to count."""
    if fmt.bits == 16 and fmt.dtype is not None:
        return c.to(fmt.dtype).view(torch.int16).to(torch.int64) & 0x7FFF
    return c.abs()


def rows_of(where: Tensor, dims: tuple[str, ...]) -> Tensor:
    """Return the row of each judged element: its place along batch and token, else all dims but the last."""
    if not len(where):
        return where.new_zeros(0)
    row_dims = [i for i, meaning in enumerate(dims) if meaning in ("batch", "token")]
    if not row_dims:
        row_dims = list(range(where.shape[1] - 1))
    rows = torch.zeros(len(where), dtype=torch.int64)
    for dim in row_dims:
        rows = rows * (int(where[:, dim].max()) + 1) + where[:, dim]
    if where.shape[1] and bool((rows == rows[0]).all()):
        # One row alone: blocks of neighbouring columns stand in for rows.
        return where[:, -1] // 16
    return rows


def selected_values(value: Tensor | float, selected: Tensor) -> Tensor:
    """Return a sigma or bound at the selected elements, flat."""
    if isinstance(value, Tensor):
        return value.expand(selected.shape)[selected]
    return torch.full((int(selected.sum()),), value, dtype=torch.float64)


def _unravel(index: int, shape: torch.Size) -> tuple[int, ...]:
    place = []
    for size in reversed(shape):
        index, offset = divmod(index, size)
        place.append(offset)
    return tuple(reversed(place))

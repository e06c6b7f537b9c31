"""Signatures as words: what an edge, or a parameter, looks like."""

from collections.abc import Sequence
from typing import Any

from validator.checks.findings import Signature

__all__ = ["signature_words"]


def signature_words(signature: Signature) -> str:
    """Name a hypothesis in words that follow "looks like"."""
    p = signature.parameters
    within = f" on {p['within']}" if "within" in p else ""
    match signature.kind:
        case "bias_per_rank":
            return f"the bias added {p['times']} times, once on every rank"
        case "bias_missing":
            return "the bias left out"
        case "missing_reduction" | "double_reduction" | "mixed_reduction":
            return _reduction(signature)
        case "constant" if p["op"] == "scaled_dot_product_attention":
            return f"{_attention_scale(p)}{within}"
        case "constant":
            return f"{p['op']} with {p['value'] * p['factor']:.6g} in place of {p['value']:.6g}{within}"
        case "attention_scale":
            return _attention_scale(p)
        case "sign":
            return f"the sign flipped{within}"
        case "factor":
            return f"a factor of {p['factor']:.6g}{within}"
        case "constant_vector":
            return "a constant vector added to every row"
        case "clamp":
            return _clamp(p["low"], p["high"])
        case "saturation":
            return f"saturation at {p['limit']:g}, the largest value of its format, in place of infinity"
        case "overflow":
            return f"overflow of an intermediate result: what is larger than {p['above']:.6g} is infinite"
        case "not_finite":
            return f"{_SPECIAL[p['value']]}{within}"
        case "missing_addend":
            return f"{p['of']} left out of the sum"
        case "repeated_addend":
            times = "once more" if p["times"] == 1 else f"{p['times']} times more"
            return f"{p['of']} added {times} than it should be"
        case "wrong_term":
            return f"{p['looks_like']} in what rank {p['rank']} gave to the sum"
        case "offset":
            return f"an offset of {p['offset']}{within}"
        case "zeros":
            return f"zeros{within}, never written or dropped"
        case "narrower_format":
            toward = " toward zero" if p["rounding"] == "toward_zero" else ""
            return f"values rounded{toward} to {p['format']}{within}"
        case "narrow_factors":
            return f"products of factors that were rounded to {p['format']}"
        case "truncation":
            return f"rounding toward zero (a gain of {p['gain']:.2g})"
        case "shifted":
            return _shifted(p)
        case "keys_left_out" | "keys_not_hidden" | "keys_of_another" | "keys_scaled" | "cache_scale":
            return _keys(signature)
        case "rank":
            return f"a fault of rank {p['rank']} alone"
        case "tokens" | "sequences" | "heads" | "channels" | "experts":
            return _region(signature)
        case "other_parameter":
            return f"the values of {p['name']}"
        case "permutation":
            what = f"{'rows' if p['dim'] == 0 else 'columns'} in another order ({p['blocks']} blocks)"
            return f"{what}: {p['is']}, in place of {p['should_be']}" if "is" in p else what
        case "layout":
            return _layout(p)
        case kind:
            return ", ".join([kind.replace("_", " "), *(_figure(name, value) for name, value in p.items())])


_SPECIAL = {"nan": "NaN", "inf": "infinity", "nan and inf": "NaN and infinity"}


def _attention_scale(p: Any) -> str:
    if "value" not in p:
        return f"the scores of attention multiplied by {p['factor']:.6g}"
    return f"the scale of attention {p['value'] * p['factor']:.6g} in place of {p['value']:.6g}"


def _reduction(signature: Signature) -> str:
    p = signature.parameters
    bias = ", and the bias left out" if p.get("without_bias") else ""
    if "factor" in p:
        what = {
            "double_reduction": "the sum over ranks taken twice",
            "missing_reduction": "a sum over ranks left out",
        }[signature.kind]
        return f"{what} (a factor of {p['factor']:g}){bias}"
    if "own_term" in p:
        return f"the sum over ranks left out, so that each has its own part alone{bias}"
    parts = []
    if "missing" in p:
        parts.append(f"without what {_ranks(p['missing'])} gave")
    if "repeated" in p:
        parts.append(f"with {p['times']} times what {_ranks(p['repeated'])} gave")
    return f"the sum over ranks {' and '.join(parts)}{bias}"


def _layout(p: Any) -> str:
    along = f" along {p['dim']}" if "dim" in p else ""
    blocks = f" of {p['blocks']} blocks" if "blocks" in p else ""
    order = f" ({', '.join(map(str, p['order']))})" if "order" in p else ""
    declare = f" (as a layout: {p['layout']})" if "layout" in p and not order else ""
    return f"{p['is']}{blocks}{order}{along}, in place of {p['should_be']}{declare}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _clamp(low: float | None, high: float | None) -> str:
    if low is None:
        return f"values above {high:.6g} cut off there"
    if high is None:
        return f"values below {low:.6g} cut off there"
    return f"values cut off below {low:.6g} and above {high:.6g}"


def _shifted(p: Any) -> str:
    parts = []
    if p["tokens"]:
        where = "before" if p["tokens"] > 0 else "after"
        parts.append(f"{abs(p['tokens'])} position{'s' if abs(p['tokens']) > 1 else ''} {where} it")
    if p.get("sequences"):
        where = "before" if p["sequences"] > 0 else "after"
        parts.append(f"{abs(p['sequences'])} sequence{'s' if abs(p['sequences']) > 1 else ''} {where} it")
    return f"each row is the one {', '.join(parts)}"


def _keys(signature: Signature) -> str:
    p = signature.parameters
    tokens = f"tokens {p['start']}:{p['stop']}" if "start" in p else _figure("tokens", p["keys"])
    keys = f"the keys and values of {tokens}"
    if "distance" in p:
        nearest, furthest = (abs(x) for x in sorted(p["distance"], key=abs))
        far = f"{nearest}" if nearest == furthest else f"{nearest} to {furthest}"
        keys += f" ({far} {'after' if p['distance'][0] < 0 else 'before'} each query)"
    match signature.kind:
        case "keys_left_out":
            what = f"{keys} left out of the attention"
        case "keys_not_hidden":
            what = f"{keys} attended to, though the mask hides them"
        case "keys_of_another":
            what = f"{keys} replaced by {_source(p)}"
        case _:
            factors = [
                f"{name} by {p[f'factor_of_{name}']:.6g}"
                for name in ("keys", "values")
                if f"factor_of_{name}" in p
            ]
            read = "a cache" if signature.kind == "cache_scale" else "keys and values"
            what = f"{read} read at another scale: of {tokens}, {' and '.join(factors)}"
    some = f", for sequence{'s' if len(p['sequences']) > 1 else ''} " if "sequences" in p else ""
    return what + some + (", ".join(map(str, p["sequences"])) if some else "")


def _source(p: Any) -> str:
    if "of_earlier_call" in p:
        return "what the request before left there"
    if "of_pool" in p:
        return f"the front of the pool, where blocks of {p['of_pool']} tokens of all sequences lie in turn"
    of = f"those of sequence {p['of_sequence']}" if "of_sequence" in p else "those"
    if "tokens" not in p:
        return of
    return f"{of} {abs(p['tokens'])} tokens {'before' if p['tokens'] > 0 else 'after'}"


def _region(signature: Signature) -> str:
    p, unit = signature.parameters, signature.kind.removesuffix("s")
    if "start" not in p:
        indices = p[signature.kind]
        name = unit if len(indices) == 1 else signature.kind
        if unit == "expert":
            return f"a fault of all tokens of {name} {', '.join(map(str, indices))}"
        return f"a fault of {name} {', '.join(map(str, indices))} alone"
    ends = {"prefix": "the first ones", "suffix": "the last ones", "inside": "a range inside"}[p["edge"]]
    block = f", in blocks of {p['block']}" if "block" in p else ""
    return f"a fault of {signature.kind} {p['start']}:{p['stop']} alone ({ends}{block})"


def _figure(name: str, value: Any) -> str:
    name = name.replace("_", " ")
    if isinstance(value, Sequence) and not isinstance(value, str):
        name = name.removesuffix("s") if len(value) == 1 else name
        return f"{name} {', '.join(map(str, value))}"
    return f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"

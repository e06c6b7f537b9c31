"""The script of a reproducer: what it says on top, the code that it runs, and how it measures."""

from collections.abc import Mapping, Sequence

import torch

from validator.numerics.formats import format_of
from validator.reproducing.program import Program, lines_of

__all__ = ["script"]


def script(program: Program, *, about: Mapping[str, str], kind: str, dtype: torch.dtype) -> str:
    """Return the text of `reproduce.py`.

    Args:
        program: what to run.
        about: lines of its head, by their titles.
        kind: `"band"` where single values are wrong, `"slope"` where all of them together are off along a
            direction.
        dtype: the candidate's.
    """
    ulp = (
        f"{format_of(dtype).precision}, {format_of(dtype).e_min}" if dtype.is_floating_point else "None, None"
    )
    head = "\n".join(_wrapped(f"{title}: {text}") for title, text in about.items() if text)
    body = "\n".join(f"    {line}" for line in lines_of(program))
    return (
        _TEMPLATE.replace("{head}", head)
        .replace("{body}", body)
        .replace("{kind}", kind)
        .replace("{ulp}", ulp)
    )


def _wrapped(text: str) -> str:
    """Return a text as comment lines."""
    lines, line = [], "#"
    for word in _safe(text).split():
        if len(line) + len(word) > 108:
            lines.append(line)
            line = "#  "
        line += f" {word}"
    return "\n".join([*lines, line])


def _safe(text: str) -> str:
    return "".join(x if x.isprintable() else " " for x in text)


def titles(items: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return lines of the head, without those that say nothing."""
    return {title: text for title, text in items if text}


_TEMPLATE = '''#!/usr/bin/env python3
{head}
#
# python reproduce.py [--device cuda]     needs torch alone; tensors.safetensors lies beside it
# Exit code 1: the stored output of the candidate is off by more than rounding explains; 0: it is not.
import argparse
import json
import math
import pathlib
import sys

import torch

KIND = "{kind}"
PRECISION, SMALLEST = {ulp}  # of the candidate's format: significant bits, least exponent
NAMES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
         "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64,
         "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
         "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
         "BOOL": torch.bool}


def run(given, device):
{body}


def load(path):
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            raw = torch.frombuffer(bytearray(data[start + first:start + last] or b"\\0"), dtype=torch.uint8)
            raw = raw if last > first else raw[:0]
            tensors[name] = raw.view(NAMES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def in_ulp(found, oracle):
    """Errors in units of the last place at the oracle, in the candidate's format."""
    if PRECISION is None:
        return (found.double() - oracle.double()).abs()
    exponent = torch.frexp(oracle.abs())[1].double().sub(1).clamp_min(SMALLEST)
    apart = (found - oracle).abs() / torch.exp2(exponent - PRECISION + 1)
    alike = (found == oracle) | (found.isnan() & oracle.isnan())
    return torch.where(alike, 0.0, apart.nan_to_num(nan=math.inf))


def is_wrong(found, stored):
    apart = (found - stored["oracle"].double()).abs()
    same = (found == stored["oracle"]) | (found.isnan() & stored["oracle"].isnan())
    outside = ~same & ~(apart <= stored["allowed"]) & stored["judged"]
    if KIND == "slope":
        use = apart.isfinite() & stored["judged"]
        weight, direction = stored["weight"][use], stored["direction"][use]
        slope = (weight * (found - stored["oracle"])[use] * direction).sum() / (weight * direction**2).sum()
        print(f"  slope {float(slope):+.3g}, rounding explains {float(stored['limit']):.2g}")
        return bool(slope.abs() > stored["limit"]), outside
    return bool(outside.any()), outside


def tell(title, output, stored):
    found = output.cpu()
    found = torch.view_as_real(found) if found.is_complex() else found
    found = found.reshape(stored["oracle"].shape).double()
    errors = in_ulp(found, stored["oracle"])
    errors = torch.where(stored["judged"], errors, 0.0)
    worst = int(errors.reshape(-1).argmax())
    wrong, outside = is_wrong(found, stored)
    oracle = float(stored["oracle"].reshape(-1)[worst])
    print(f"{title}: {float(errors.max()):.3g} ulp at worst, element {worst} of {errors.numel()}: "
          f"{float(found.reshape(-1)[worst]):.9g} in place of {oracle:.9g}; "
          f"{int(outside.sum())} elements outside of what rounding explains: {'WRONG' if wrong else 'right'}")
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    device = torch.device(parser.parse_args().device)
    tensors = load(pathlib.Path(__file__).with_name("tensors.safetensors"))
    stored = {name[6:]: x for name, x in tensors.items() if name.startswith("judge/")}
    given = {name[6:]: x.to(device) for name, x in tensors.items() if name.startswith("given/")}
    print(f"torch {torch.__version__} on {device}")
    with torch.no_grad():
        tell("computed here now   ", run(given, device), stored)
    return int(tell("candidate as stored ", stored["candidate"], stored))


if __name__ == "__main__":
    sys.exit(main())
'''

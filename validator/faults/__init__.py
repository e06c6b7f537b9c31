"""Faults to plant in a healthy port, to prove that a set-up detects them.

A detector that was never seen to fire proves nothing. Each fault here is one that ports really had;
planted, it must be named at the module that its record holds:

    planned = validator.faults.parse("attn-scale:layer=3,factor=1.02")
    planned.plant(model)     # in place, on every rank
    planned.module           # what a perfect tool names: "*layers.3.self_attn"

`validator check port.py --plant attn-scale:layer=3` does that before it runs the candidate, and
`validator faults` lists the faults. They look for the modules of Llama-like decoders of transformers,
by structure and not by class. A model without such modules is refused, and so is one in which the fault would
change nothing as far as weights and config tell; whether the inputs show it is the target's affair.
"""

from validator.faults.catalogue import get, parse, registry
from validator.faults.fault import Fault, Parameter, PlannedFault

__all__ = ["Fault", "Parameter", "PlannedFault", "get", "parse", "registry"]

"""What kind of fault an edge or a parameter shows: the simplest correction that makes it agree."""

from validator.checks.signatures.addends import miscounted_addend
from validator.checks.signatures.constants import FittedConstant, fit_constant
from validator.checks.signatures.formats import truncation
from validator.checks.signatures.integers import integer_offset
from validator.checks.signatures.keys import keys_signature
from validator.checks.signatures.parameters import parameter_signature
from validator.checks.signatures.regions import region_of
from validator.checks.signatures.search import edge_signature
from validator.checks.signatures.subject import Subject, residual_ulp
from validator.checks.signatures.words import signature_words

__all__ = [
    "FittedConstant",
    "Subject",
    "edge_signature",
    "fit_constant",
    "integer_offset",
    "keys_signature",
    "miscounted_addend",
    "parameter_signature",
    "region_of",
    "residual_ulp",
    "signature_words",
    "truncation",
]

"""What must be said of the faults of KV caches."""

from tests.planted.expectation import DENSE, SCORES, Expectation
from tests.stimuli import BLOCK, Stimulus
from validator.checks.findings import Check

__all__ = ["FAULTS"]

FAULTS = (
    Expectation(
        fault=f"kv-shared-block:tokens={BLOCK}",
        guilty=SCORES,
        checks=(Check.WIRING,),
        families=DENSE,
        stimulus=Stimulus.SHARED_PREFIX,
    ),
    *(
        Expectation(fault=fault, guilty=SCORES, checks=(Check.WIRING,), families=DENSE)
        for fault in ("kv-no-block-table", "kv-scale-ignored", "kv-fnuz")
    ),
)

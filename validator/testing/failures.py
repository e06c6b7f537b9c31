"""The exception that ends a test of a port: its text is all that pytest shows."""

import pytest

from validator.testing.lines import message_text
from validator.testing.records import Failure

__all__ = ["PortFailure"]


class PortFailure(pytest.fail.Exception):  # type: ignore[name-defined, misc]
    """A test of a port failed; it is shown without a traceback.

    Attributes:
        failure: why.
        text: what is shown; default the failure's message with whom it blames and its evidence.
    """

    def __init__(self, failure: Failure, text: str | None = None) -> None:
        self.failure = failure
        self.text = text or message_text(
            failure.message, module=failure.module, rank=failure.rank, evidence=failure.evidence
        )
        super().__init__(self.text, pytrace=False)

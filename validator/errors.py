"""The user's mistakes: one message each, shown without a traceback.

Anything that is not a `ValidatorError` is our own bug and keeps its traceback.
"""

from typing import ClassVar

__all__ = [
    "CaptureError",
    "ComparisonError",
    "IncompleteCaptureError",
    "LaunchError",
    "LayoutError",
    "MismatchError",
    "TargetError",
    "UsageError",
    "ValidatorError",
]


class ValidatorError(Exception):
    """A mistake that the user can mend: the message says what failed, the values, and what to do next."""

    kind: ClassVar[str] = "error"


class UsageError(ValidatorError):
    """An option or argument that is not legal."""

    kind = "usage"


class TargetError(ValidatorError):
    """A target that can't be found, loaded, built or run."""

    kind = "target"


class LaunchError(ValidatorError):
    """A rank that failed, died or hung."""

    kind = "launch"


class CaptureError(ValidatorError):
    """A capture that can't be written or read."""

    kind = "capture"


class IncompleteCaptureError(CaptureError):
    """A capture whose writing did not end: it was killed, is still running, or its disk was full."""

    kind = "incomplete_capture"


class MismatchError(ValidatorError):
    """Two sides that can't be compared: other models, vocabularies or inputs."""

    kind = "mismatch"


class LayoutError(ValidatorError):
    """Shards that can't be put together into the reference's tensor."""

    kind = "layout"


class ComparisonError(ValidatorError, ValueError):
    """Two tensors that can't be compared: shapes or formats differ."""

    kind = "comparison"

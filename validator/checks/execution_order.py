"""The place of each edge in the order in which the reference's code gets to it.

Of a row-parallel module what goes in comes first, then the terms that the ranks gave, their sum, and the
copies of it. What encloses a call comes after the call.
"""

from validator.align.traces import TraceCall

__all__ = ["ExecutionOrder"]


class ExecutionOrder:
    """Numbers edges as the reference's code gets to them; one that it gets to again keeps its place."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str, int, str], int] = {}
        self._last = 0

    def given(self, call: TraceCall, path: str) -> int:
        """Return the place of what a call is given at a path."""
        return self._place("given", call, path)

    def chosen(self, call: TraceCall, name: str) -> int:
        """Return the place of a choice in a call's own code, by its name."""
        return self._place("chosen", call, name)

    def returned(self, call: TraceCall, path: str) -> int:
        """Return the place of what a call returns at a path."""
        return self._place("returned", call, path)

    def copies(self, call: TraceCall, path: str) -> int:
        """Return the place of the copies that ranks hold of what a call returns at a path."""
        return self.returned(call, path) + 1

    @staticmethod
    def terms(returned: int) -> int:
        """Return the place of the terms that ranks gave to what is returned at a place."""
        return returned - 1

    def _place(self, kind: str, call: TraceCall, name: str) -> int:
        key = (kind, call.module, call.n, name)
        if key not in self._places:
            # Between two edges there is room for the copies of the first and the terms of the second.
            self._last += 3
            self._places[key] = self._last
        return self._places[key]

"""When to connect again."""

from __future__ import annotations

import time

from .errors import Unreachable

MAX_PAUSE = 5.0  # seconds between two attempts, at most


class Backoff:
    """Counts attempts to connect that brought no answer. Only the connecting thread or task uses
    it."""

    def __init__(self) -> None:
        self._failures = 0
        self._why = ""
        self._at = 0.0

    def failed(self, why: str, at: float) -> None:
        """Note a failure: no connection, or one that ended before its first answer."""
        self._failures, self._why, self._at = self._failures + 1, why, at

    def succeeded(self) -> None:
        """Note a connection that brought an answer."""
        self._failures = 0

    def pause(self, began: float, until: float) -> float:
        """Seconds until the next attempt, for a request that waits from ``began`` to ``until``.

        All requests that wait while an attempt fails fail with it. If each made an attempt of its
        own, after a pause, the last one would wait for the pauses of all.
        """
        if not self._failures:
            return 0.0
        now = time.monotonic()
        pause = self._at + min(0.05 * 2.0 ** min(self._failures, 10), MAX_PAUSE) - now
        if self._at > began or pause > until - now:
            raise Unreachable(self._why, may_have_run=False)
        return max(0.0, pause)

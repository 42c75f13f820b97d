"""When to check whether one of several servers is alive.

The connection may stay open although no answer will come: the host has no power, or the process
hangs. A slow model looks the same, since answers have the order of their requests, so the check
uses another connection.
"""

from __future__ import annotations

import time

SILENCE = 2.0  # seconds without an answer that trigger a check
CHECK_TIMEOUT = 2.0  # seconds for the check to connect, and for its answer


class Silence:
    """Measures how long requests on a connection have waited without an answer."""

    def __init__(self) -> None:
        self._heard = self._asked = -SILENCE

    def ends(self) -> None:
        """Note that an answer has come, or that a request was sent while none waited."""
        self._heard = time.monotonic()

    def lasts(self) -> float:
        """Seconds since the last call of ``ends``."""
        return time.monotonic() - self._heard

    def doubtful(self) -> bool:
        """Whether the silence has lasted too long, with no check for as long."""
        now = time.monotonic()
        if now - max(self._heard, self._asked) < SILENCE:
            return False
        self._asked = now
        return True

    def error(self, address: object, error: Exception) -> str | None:
        """The error for a server that did not answer on another connection either.

        None if an answer has come meanwhile.
        """
        if (seconds := self.lasts()) < SILENCE:
            return None
        return f"{address}: no answer for {seconds:.1f} s, nor on another connection ({str(error) or 'timed out'})"

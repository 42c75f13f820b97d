"""When one of several servers is asked whether it lives.

Its connection may stay although no answer will come: its host has no power, or its process hangs. A
model may take its time as well, and answers have the order of their requests, so the server is
asked on another connection.
"""

from __future__ import annotations

import time

SILENCE = 2.0  # seconds without an answer, after which the server is asked
PROOF_TIME = 2.0  # seconds for the other connection, and for the answer on it


class Silence:
    """How long the answers on a connection have been waited for."""

    def __init__(self) -> None:
        self._heard = self._asked = -SILENCE

    def ends(self) -> None:
        """Note that an answer has come, or that the first request was sent of those that wait."""
        self._heard = time.monotonic()

    def lasts(self) -> float:
        """Seconds since then."""
        return time.monotonic() - self._heard

    def doubtful(self) -> bool:
        """Whether it has lasted too long, and the server was not asked for a while."""
        now = time.monotonic()
        if now - max(self._heard, self._asked) < SILENCE:
            return False
        self._asked = now
        return True

    def found(self, address: object, error: Exception) -> str | None:
        """What to say of a server that did not answer on another connection either.

        None if an answer has come meanwhile.
        """
        if (seconds := self.lasts()) < SILENCE:
            return None
        return f"{address}: no answer for {seconds:.1f} s, nor on another connection ({str(error) or 'timed out'})"

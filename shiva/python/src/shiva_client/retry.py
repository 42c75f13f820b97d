"""Which requests are sent to another server, and the error when none has answered."""

from __future__ import annotations

import random
import time
from typing import Generic, TypeVar

from .errors import (
    ClientClosed,
    ContainerLost,
    Draining,
    NotAnswered,
    NotFound,
    Overloaded,
    RemoteError,
    ShivaError,
    TimedOut,
    Unavailable,
    Unreachable,
)

FIRST_PAUSE = 0.02  # seconds between two rounds over all servers
LAST_PAUSE = 0.32

L = TypeVar("L")


class Pursuit(Generic[L]):
    """A request on its way from server to server.

    Attributes:
        tried: the servers of this round
        until: its deadline, on the clock of time.monotonic()
    """

    def __init__(self, namespace: str, *, resendable: bool, repeatable: bool, timeout: float | None, patience: float):
        """``resendable``: whether it may be sent again; ``repeatable``: even if it may have run.

        Without a timeout, attempts end after ``patience`` seconds.
        """
        name, update, rest = namespace.rpartition("/update")
        self._feedback = bool(update) and not rest and "/" not in name
        self._resendable, self._repeatable = resendable, repeatable and not self._feedback
        self._bounded = timeout is not None
        self.until = time.monotonic() + (patience if timeout is None else timeout)
        self.tried: list[L] = []
        self._errors: dict[str, ShivaError] = {}
        self._overloaded = 0
        self._lost = 0
        self._recoverable = False  # another round may succeed
        self._pause = FIRST_PAUSE

    @property
    def left(self) -> float | None:
        """Seconds until the deadline; None if there is none."""
        return max(0.001, self.until - time.monotonic()) if self._bounded else None

    def record_failure(self, link: L, name: str, error: BaseException | None) -> bool:
        """Note the failure at a server, and return whether another may get the request."""
        if not isinstance(error, ShivaError):
            return False
        self.tried.append(link)
        self._errors.pop(name, None)
        self._errors[name] = error
        if isinstance(error, RemoteError):
            return self._resendable and self._retries_after(error)
        if not isinstance(error, NotAnswered) or isinstance(error, ClientClosed | TimedOut):
            return False
        self._recoverable = True
        return self._resendable and (not error.may_have_run or self._repeatable)

    def _retries_after(self, error: RemoteError) -> bool:
        """Whether another server may get the request after this error."""
        if isinstance(error, Draining):
            self._recoverable = True
            return True
        if isinstance(error, Unavailable):  # feedback may have been stored
            self._recoverable = True
            return not self._feedback
        if isinstance(error, ContainerLost):
            # Twice at most: the request itself may be what ends containers. The server says so
            # (error.retryable is False) once it knows.
            self._lost += 1
            again = self._repeatable and error.retryable and self._lost < 2
            self._recoverable = self._recoverable or again
            return again
        if isinstance(error, Overloaded):
            # Twice at most: if all servers are overloaded, requests that move from one to the next
            # would become most of their load.
            self._overloaded += 1
            return self._overloaded < 2 and not self._feedback
        return isinstance(error, NotFound) and not self._feedback

    def down(self, link: L, name: str, why: NotAnswered) -> None:
        """Note a server that did not get the request because it is unreachable."""
        self._recoverable = True
        if link not in self.tried:
            self._errors[name] = why

    def pause(self) -> float | None:
        """Seconds until the next round; None if there is none."""
        if (self._errors and not self._recoverable) or self.until - time.monotonic() <= self._pause:
            return None
        pause, self._pause = self._pause, min(2 * self._pause, LAST_PAUSE)
        self._recoverable = False
        self.tried.clear()
        return pause * random.uniform(0.5, 1)

    def error(self) -> ShivaError:
        """The error of the last server, with those of the others as ``attempts``."""
        if not self._errors:  # all were down when one was to be chosen, and up again a moment later
            return Unreachable("no server took the request in time", may_have_run=False)
        last = list(self._errors.values())[-1]
        final = isinstance(last, RemoteError) and not last.retryable and not isinstance(last, NotFound)
        if len(self._errors) > 1 and not final:
            last.attempts = dict(self._errors)
            if isinstance(last, NotAnswered):
                ran = (one.may_have_run for one in self._errors.values() if isinstance(one, NotAnswered))
                last.may_have_run = any(ran)
        return last

"""What a thread waits for: sockets, and another thread that wakes it."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Mapping
from typing import Generic, TypeVar

T = TypeVar("T")

# Not epoll: there a socket that a forked child holds open, too, is reported for ever after it was closed.
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)


class Poller(Generic[T]):
    """Waits for sockets by their descriptors. Only ``wake`` may be called from other threads."""

    def __init__(self) -> None:
        self._selector: selectors.BaseSelector = _Selector()
        self._ear, self._mouth = socket.socketpair()
        for end in (self._ear, self._mouth):
            end.setblocking(False)
        self._woken = False
        self._selector.register(self._ear, selectors.EVENT_READ)
        self._followed: dict[int, tuple[T, int]] = {}

    def wake(self) -> None:
        """End the wait that is going on, or else the next one."""
        if self._woken:
            return
        self._woken = True
        try:
            self._mouth.send(b"!")
        except OSError:  # full: it will wake anyway; closed: it has ended
            return

    def follow(self, wanted: Mapping[int, tuple[T, int]]) -> None:
        """Wait for these descriptors from now on, each with what ``wait`` says of it and its events."""
        if wanted == self._followed:
            return
        for number in self._followed.keys() - wanted.keys():
            self._selector.unregister(number)
        for number, (what, events) in wanted.items():
            if number in self._followed:
                self._selector.modify(number, events, what)
            else:
                self._selector.register(number, events, what)
        self._followed = dict(wanted)

    def wait(self, timeout: float | None) -> list[T]:
        """Wait until a socket is ready, or somebody wakes us; what is ready."""
        ready: list[T] = []
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                self._ear.recv(64)
                self._woken = False  # after this the caller looks at what it was woken for
            else:
                ready.append(key.data)
        return ready

    def close(self) -> None:
        """Nobody waits any more."""
        self._selector.close()
        self._ear.close()
        self._mouth.close()

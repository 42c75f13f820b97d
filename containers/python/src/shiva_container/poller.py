"""What a thread waits for: sockets, and another thread that wakes it."""

from __future__ import annotations

import math
import select
import socket
from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")

READ, WRITE = 1, 4
"""Events to wait for: the values of poll(2)."""


class _Poll(Protocol):
    """What :func:`select.poll` makes."""

    def register(self, number: int, events: int, /) -> None: ...
    def unregister(self, number: int, /) -> None: ...
    def poll(self, milliseconds: float | None = None, /) -> list[tuple[int, int]]: ...


class Select:
    """The same by :func:`select.select`, for systems that have nothing else."""

    def __init__(self) -> None:
        self._events: dict[int, int] = {}

    def register(self, number: int, events: int, /) -> None:
        self._events[number] = events

    def unregister(self, number: int, /) -> None:
        del self._events[number]

    def poll(self, milliseconds: float | None = None, /) -> list[tuple[int, int]]:
        reads = [number for number, events in self._events.items() if events & READ]
        writes = [number for number, events in self._events.items() if events & WRITE]
        seconds = None if milliseconds is None else milliseconds / 1000
        try:
            # On Windows an attempt to connect that has failed is an exception of the socket.
            readable, writable, failed = select.select(reads, writes, writes, seconds)
        except OSError:  # another thread has closed one, which for poll is an event of it
            return [(number, READ) for number in self._events if _closed(number)]
        return [(number, READ) for number in {*readable, *writable, *failed}]


def _closed(number: int) -> bool:
    try:
        select.select((number,), (), (), 0)
    except OSError:
        return True
    return False


def _poll() -> _Poll:
    # Not selectors, which spend more time on an event than the system does. Not epoll: there a
    # socket that a forked child holds open, too, is reported for ever after it was closed.
    return select.poll() if hasattr(select, "poll") else Select()


class Poller(Generic[T]):
    """Waits for sockets by their descriptors. Only ``wake`` may be called from other threads."""

    def __init__(self) -> None:
        self._poll = _poll()
        self._ear, self._mouth = socket.socketpair()
        for end in (self._ear, self._mouth):
            end.setblocking(False)
        self._woken = False
        self._poll.register(self._ear.fileno(), READ)
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
        """Watch these descriptors: for each its events, and what ``wait`` returns for it."""
        if wanted == self._followed:
            return
        for number in self._followed.keys() - wanted.keys():
            self._poll.unregister(number)
        for number, (_, events) in wanted.items():
            self._poll.register(number, events)  # again, if it was: its events may be others
        self._followed = dict(wanted)

    def wait(self, timeout: float | None) -> list[T]:
        """Wait until a socket is ready, or somebody wakes us; what is ready."""
        ready: list[T] = []
        for number, _ in self._poll.poll(None if timeout is None else math.ceil(timeout * 1000)):
            if number in self._followed:
                ready.append(self._followed[number][0])
            else:
                self._ear.recv(64)
                self._woken = False  # after this the caller looks at what it was woken for
        return ready

    def close(self) -> None:
        """Nobody waits any more."""
        self._ear.close()
        self._mouth.close()

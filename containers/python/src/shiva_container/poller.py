"""Waiting for sockets, and for another thread that wakes the waiting one."""

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
    """The type of :func:`select.poll`'s result."""

    def register(self, number: int, events: int, /) -> None: ...
    def unregister(self, number: int, /) -> None: ...
    def poll(self, milliseconds: float | None = None, /) -> list[tuple[int, int]]: ...


class Select:
    """A poll by :func:`select.select`, for systems that have nothing else."""

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
            # On Windows a failed attempt to connect is an exception of the socket.
            readable, writable, failed = select.select(reads, writes, writes, seconds)
        except OSError:  # another thread has closed a socket, which poll reports as an event
            return [(number, READ) for number in self._events if _closed(number)]
        return [(number, READ) for number in {*readable, *writable, *failed}]


def _closed(number: int) -> bool:
    try:
        select.select((number,), (), (), 0)
    except OSError:
        return True
    return False


def _poll() -> _Poll:
    # Not selectors, which spend more time on an event than the system does. Not epoll: it reports a
    # closed socket for ever if a forked child still holds it open.
    return select.poll() if hasattr(select, "poll") else Select()


class Poller(Generic[T]):
    """Waits for sockets by their descriptors. Only ``wake`` may be called from other threads."""

    def __init__(self) -> None:
        self._poll = _poll()
        self._wake_reader, self._wake_writer = socket.socketpair()
        for end in (self._wake_reader, self._wake_writer):
            end.setblocking(False)
        self._woken = False
        self._poll.register(self._wake_reader.fileno(), READ)
        self._followed: dict[int, tuple[T, int]] = {}

    def wake(self) -> None:
        """End the current wait, or else the next one."""
        if self._woken:
            return
        self._woken = True
        try:
            self._wake_writer.send(b"!")
        except OSError:  # full: it will wake anyway; closed: it has ended
            return

    def follow(self, wanted: Mapping[int, tuple[T, int]]) -> None:
        """Watch these descriptors: for each its events, and its value for ``wait`` to return."""
        if wanted == self._followed:
            return
        for number in self._followed.keys() - wanted.keys():
            self._poll.unregister(number)
        for number, (_, events) in wanted.items():
            self._poll.register(number, events)  # again, if it was: its events may differ
        self._followed = dict(wanted)

    def wait(self, timeout: float | None) -> list[T]:
        """Wait until a socket is ready or :meth:`wake` is called; the values of ready sockets."""
        ready: list[T] = []
        for number, _ in self._poll.poll(None if timeout is None else math.ceil(timeout * 1000)):
            if number in self._followed:
                ready.append(self._followed[number][0])
            else:
                self._wake_reader.recv(64)
                self._woken = False  # after this the caller looks for the reason
        return ready

    def close(self) -> None:
        """Close it, once no thread waits any more."""
        self._wake_reader.close()
        self._wake_writer.close()

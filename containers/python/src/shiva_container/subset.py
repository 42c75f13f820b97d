"""The servers behind a name with which a container has sessions."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

DEFAULT = 16
ENVIRONMENT = "SHIVA_SUBSET"
FIRST_TRY = 5.0
"""Seconds from one trial to the next; they double while trials change nothing, up to LAST_TRY."""
LAST_TRY = 120.0
AWAY_SECONDS = 10.0
"""The time without a session after which another server takes a server's place until it returns."""
TRY_SECONDS = 10.0
"""How long a server under trial may take to register the model."""
LOOK_SECONDS = 1.0
"""How often the choice is reviewed where there are servers to choose from."""


def subset_size(given: int | None) -> int:
    """The number of servers of a name to have sessions with, else that of $SHIVA_SUBSET."""
    if given is None:
        text = os.environ.get(ENVIRONMENT, "")
        if text and not (text.isdecimal() and int(text) > 0):
            raise ValueError(f"${ENVIRONMENT} is {text!r}, expected a number of servers from 1")
        return int(text) if text else DEFAULT
    if given < 1:
        raise ValueError(f"subset is {given}, expected a number of servers from 1")
    return given


def rendezvous(key: str, servers: Sequence[str]) -> list[str]:
    """The order of servers for a key, the same as in the SDK for Go.

    By the first 8 bytes of the SHA-256 of key, a zero byte and address, the largest number first.
    """
    prefix = key.encode() + b"\0"

    def rank(server: str) -> tuple[int, str]:
        return -int.from_bytes(hashlib.sha256(prefix + server.encode()).digest()[:8], "big"), server

    return sorted(dict.fromkeys(servers), key=rank)


class Subset:
    """The choice of one model of a container among the servers of a name: ``size`` of them.

    The same as in the SDK for Go (containers/internal/subset/subset.go gives the reasons): the
    first of an order that is the container's own; from time to time the next server is also tried,
    and the server with the most sessions of the model is left. All times are seconds of one clock.
    """

    def __init__(self, key: str, size: int) -> None:
        """``key`` is the container's, different from those of all other containers."""
        self.size = size
        self.order: list[str] = []
        self.trying = ""
        self._key = key
        self._wait = FIRST_TRY
        self._next = float("inf")

    @property
    def spare(self) -> bool:
        """Whether there are servers to choose from."""
        return len(self.order) > self.size

    def list(self, servers: Sequence[str], now: float) -> None:
        """Set the servers to choose from.

        Known ones keep their places; a new one gets its place by rendezvous if that is among the
        first, or else the last place.
        """
        known, listed = set(self.order), set(servers)
        if known == listed:
            return
        first = self.order[: self.size]
        self.order = [one for one in self.order if one in listed]
        for i, one in enumerate(rendezvous(self._key, servers)):
            if one not in known:
                self.order.insert(i if i < self.size else len(self.order), one)
        if self.trying not in listed:
            self.trying = ""
        if first != self.order[: self.size]:
            self._wait = FIRST_TRY
            self._schedule(now)
        elif self._next == float("inf") or not self.spare:
            self._schedule(now)

    def chosen(self, away: Callable[[str], bool]) -> Sequence[str]:
        """The servers to have sessions with.

        The first ones that are not away, those before them that are, since they may return, at most
        twice the size in all; and the one under trial.
        """
        found: list[str] = []
        here = 0
        for one in self.order:
            if here == self.size or len(found) == 2 * self.size:
                break
            found.append(one)
            here += not away(one)
        if self.trying and self.trying not in found:
            found.append(self.trying)
        return found

    def attempt(self, chosen: Sequence[str], now: float) -> None:
        """Start the trial of the next server that is not chosen, if it is time."""
        if not self.trying and now >= self._next:
            self.trying = next((one for one in self.order if one not in chosen), "")

    def judge(self, chosen: Sequence[str], sessions: Callable[[str], int], now: float) -> None:
        """End a trial: leave the server with the most sessions of the model, 0 if that is unknown.

        The tried server is left, if none has more.
        """
        left = self.trying
        most = sessions(left)
        if most > 0:
            for one in chosen:
                # A server that is no longer listed is left anyway, and may still have sessions.
                if one in self.order and (n := sessions(one)) > most:
                    left, most = one, n
        self._wait = FIRST_TRY if left != self.trying else min(2 * self._wait, LAST_TRY)
        self.order.remove(left)
        self.order.append(left)
        self.trying = ""
        self._schedule(now)

    def _schedule(self, now: float) -> None:
        self._next = now + self._wait if self.spare else float("inf")


class Server(Protocol):
    """The known state of a server to which there is a link."""

    @property
    def live(self) -> bool:
        """Whether there is a session."""

    @property
    def replicas(self) -> int:
        """Sessions of the model that it has; 0: unknown."""

    def away(self, now: float) -> bool:
        """Whether it has been without a session for a while."""


class Choice:
    """The choice of one model among the servers of a name, by their endpoints."""

    def __init__(self, key: str, size: int) -> None:
        """See ``Subset``."""
        self._subset = Subset(key, size)
        self._endpoints: dict[str, str] = {}  # by address:port, which orders them
        self._chosen: Sequence[str] = []
        self._since = 0.0  # of the trial

    @property
    def hello(self) -> dict[str, int] | None:
        """The choice for hello; None if there is nothing to choose."""
        subset = self._subset
        return {"size": subset.size, "servers": len(subset.order)} if subset.spare else None

    def list(self, endpoints: Sequence[str], now: float) -> None:
        """Set the servers to choose from."""
        self._endpoints = {one.rpartition("//")[2].rpartition("@")[2]: one for one in endpoints}
        self._subset.list(list(self._endpoints), now)

    def look(self, links: Mapping[str, Server], now: float) -> Sequence[str]:
        """The endpoints to have links with now; ``links`` are the existing ones."""
        servers = {one: links[endpoint] for one, endpoint in self._endpoints.items() if endpoint in links}

        def sessions(one: str) -> int:
            return servers[one].replicas if one in servers else 0

        subset = self._subset
        if subset.trying:
            if sessions(subset.trying) or now - self._since > TRY_SECONDS:
                subset.judge(self._chosen, sessions, now)
        elif servers and all(server.replicas for server in servers.values() if server.live):
            subset.attempt(self._chosen, now)
            self._since = now
        self._chosen = subset.chosen(lambda one: one in servers and servers[one].away(now))
        return [self._endpoints[one] for one in self._chosen]

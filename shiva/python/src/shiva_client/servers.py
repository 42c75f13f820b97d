"""The servers that a client's addresses stand for, and which of them gets a request."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import random
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from .address import Address
from .tls import TLS
from .token import Token

PERIOD = 20.0  # seconds between two lookups of a name
SOON = 1.0  # seconds, while a server is unreachable


@dataclass(frozen=True)
class Settings:
    """The settings that a client's connections share."""

    connect_timeout: float
    in_flight: int
    max_message: int
    shared_memory: int
    token: Token
    repeatable: bool


class Servers:
    """The addresses that a client was given, and the servers that they stand for now.

    A name with several addresses of one family stands for that many servers. Any other name is
    dialed by name, and the system tries its addresses.
    """

    def __init__(self, host: str | Sequence[str], port: int | None, tls: TLS | None, most: int) -> None:
        """Take addresses in a list or separated by commas. At most ``most`` are used."""
        if most < 1:
            raise ValueError(f"servers is {most}, it must be at least 1")
        texts = [text.strip() for text in host.split(",")] if isinstance(host, str) else list(host)
        if len(texts) > 1:
            texts = [text for text in texts if text]
        if not texts:
            raise ValueError(f"expected an address, or several with commas between them, got {host!r}")
        self.given = list(dict.fromkeys(Address.parse(text, port, tls) for text in texts))
        self.name = ",".join(map(str, self.given))
        self.named = any(_is_name(address) for address in self.given)
        self.several = len(self.given) > 1  # or a name has stood for several
        self._most = most
        self._key = os.urandom(16)  # decides which servers are used if there are too many
        self._found: dict[Address, list[Address]] = {address: [address] for address in self.given}
        self._spread: set[Address] = set()
        self.due = 0.0  # time of the next lookup of names

    def look_up(self) -> list[Address]:
        """The current servers. A name whose lookup fails keeps its last addresses."""
        for address in self.given:
            if _is_name(address):
                try:
                    self._resolve(address)
                except (OSError, UnicodeError):
                    continue  # connecting to the name reports the fault
        found = list(dict.fromkeys(one for address in self.given for one in self._found[address]))
        self.several = self.several or len(found) > 1
        if len(found) > self._most:
            # Rendezvous hashing: the rank of an address does not depend on the other addresses.
            found.sort(key=lambda one: hashlib.sha256(self._key + str(one).encode()).digest())
            found = found[: self._most]
        return found

    def looked(self, down: bool) -> None:
        """Set when the next lookup is due: soon, while a server is unreachable."""
        self.due = time.monotonic() + (SOON if down else PERIOD)

    def _resolve(self, address: Address) -> None:
        infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        v4 = {str(info[4][0]) for info in infos if info[0] == socket.AF_INET}
        hosts = sorted(v4 or {str(info[4][0]) for info in infos if info[0] == socket.AF_INET6})
        if not hosts:
            return
        if len(hosts) == 1 and address not in self._spread:
            self._found[address] = [address]
            return
        self._spread.add(address)
        tls = address.tls and replace(address.tls, server_name=address.tls.server_name or address.host)
        self._found[address] = [Address(host, address.port, tls=tls) for host in hosts]


def _is_name(address: Address) -> bool:
    if address.path:
        return False
    try:
        ipaddress.ip_address(address.host)
    except ValueError:
        return True
    return False


class Selectable(Protocol):
    """One of several servers, as far as ``pick`` and ``order`` need it."""

    address: Address | None

    @property
    def up(self) -> bool:
        """Whether it takes requests."""

    @property
    def waiting(self) -> int:
        """How many requests have no answer."""


L = TypeVar("L", bound=Selectable)


def pick(links: Sequence[L], tried: Sequence[L]) -> L | None:
    """Of two random links that take requests and were not tried, the one with fewer waiting."""
    able = [link for link in links if link.up and link not in tried]
    return min(random.sample(able, min(2, len(able))), key=lambda link: link.waiting, default=None)


def order(links: Sequence[L], at: Address | None, drained: Address | None) -> list[L]:
    """Where a stream may connect: its last server, then the one for a request, then the rest.

    A server that was draining comes last.
    """
    first = pick(links, ())

    def rank(link: L) -> int:
        if drained is not None and link.address == drained:
            return 4
        return 0 if link.address == at else 1 if link is first else 2 if link.up else 3

    return sorted(random.sample(list(links), len(links)), key=rank)

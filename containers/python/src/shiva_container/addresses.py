"""The addresses of the servers, from arguments or the environment, with names resolved."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

log = logging.getLogger("shiva_container")

DEFAULT_SERVER = "127.0.0.1:7000"
DEFAULT_PORT = 7000
ENVIRONMENT = "SHIVA_SERVERS"
RESOLVE_SECONDS = 15.0
"""How often names are looked up again, to follow servers that come and go."""


@dataclass(frozen=True)
class Address:
    """One entry of the list of servers: a host and port, or the path of a Unix socket."""

    host: str
    port: int = 0
    path: str = ""
    encrypted: bool = False

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse ``[tcp://]host[:port]``, ``[v6]:port``, ``tls://host[:port]`` or ``ipc:///path``."""
        text = text.strip()
        if text.startswith("ipc://"):
            path = text.removeprefix("ipc://")
            if not path:
                raise ValueError("ipc:// needs the path of a socket")
            return cls("", path=path)
        encrypted = text.startswith("tls://")
        rest = text.removeprefix("tls://" if encrypted else "tcp://")
        if "://" in rest:
            raise ValueError(f"server address {text!r}: tcp://, tls:// or ipc:// expected")
        if rest.startswith("["):
            host, bracket, port = rest[1:].partition("]")
            port = port.removeprefix(":") if bracket else "?"
        else:
            host, _, port = rest.partition(":")
        number = int(port) if port.isdecimal() else DEFAULT_PORT if not port else -1
        if not host or not 0 < number < 65536:
            raise ValueError(f"server address {text!r}: [tcp:// or tls://]host:port, or ipc:///path, expected")
        return cls(host, number, encrypted=encrypted)

    @property
    def literal(self) -> bool:
        """Whether there is no name to look up."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return bool(self.path)
        return True

    def endpoint(self) -> str:
        """The address as ZeroMQ writes it."""
        if self.path:
            return f"ipc://{self.path}"
        return self._at(self.host)

    def _at(self, host: str) -> str:
        address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        if not self.encrypted:
            return f"tcp://{address}"
        return f"tls://{address}" if host == self.host else f"tls://{self.host}@{address}"

    def resolve(self) -> list[str]:
        """The endpoints behind the name now; those of TLS have the name. OSError if there are none.

        A server usually has an IPv4 and an IPv6 address; registering through both would count it
        twice, so IPv6 is used only where there is no IPv4.
        """
        if self.literal:
            return [self.endpoint()]
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except UnicodeError as e:  # a name that cannot be looked up at all
            raise OSError(f"not a host name: {e}") from e
        v4 = {str(info[4][0]) for info in found if info[0] == socket.AF_INET}
        v6 = {str(info[4][0]) for info in found if info[0] == socket.AF_INET6}
        if not v4 and not v6:
            raise OSError("the name has no address")
        return sorted(self._at(host) for host in v4 or v6)


def parse_servers(servers: str | Iterable[str] | None) -> list[Address]:
    """The servers of an argument, else $SHIVA_SERVERS, else the default; commas separate them."""
    if servers is None:
        servers = os.environ.get(ENVIRONMENT, "") or DEFAULT_SERVER
    texts = servers.split(",") if isinstance(servers, str) else list(servers)
    addresses = [Address.parse(text) for text in texts if text.strip()]
    if not addresses:
        raise ValueError("no server address given")
    return list(dict.fromkeys(addresses))


class Resolver:
    """Looks names up in a thread of its own, since a lookup may block for seconds.

    ``found`` is called, in that thread, with the endpoints of each address after each change. A
    name that cannot be looked up keeps its last addresses.
    """

    def __init__(self, addresses: Sequence[Address], found: Callable[[dict[Address, list[str]]], None]) -> None:
        self._addresses = list(addresses)
        self._found = found
        self._last: dict[Address, list[str]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shiva-resolver", daemon=True)

    def start(self) -> None:
        """Look names up at once, then every RESOLVE_SECONDS if there are names."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end, and do not wait for it: a lookup may block it."""
        self._stop.set()

    def _run(self) -> None:
        before: dict[Address, list[str]] | None = None
        told: set[Address] = set()
        while not self._stop.is_set():
            for address in self._addresses:
                try:
                    self._last[address] = address.resolve()
                    told.discard(address)
                except OSError as e:
                    # Once: the lookup is repeated every few seconds.
                    level = logging.DEBUG if address in told else logging.WARNING
                    text = "cannot resolve the name of the server %s (%s); is it spelled right? trying again"
                    log.log(level, text, address.host, e)
                    told.add(address)
            if self._last != before and not self._stop.is_set():
                before = dict(self._last)
                self._found(before)
            if all(address.literal for address in self._addresses):
                return
            self._stop.wait(RESOLVE_SECONDS if before else 1.0)

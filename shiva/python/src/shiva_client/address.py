"""Where a server listens."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from .tls import TLS, Encrypted

DEFAULT_PORT = 6174
LONGEST = 107  # bytes of a Unix socket's path, on Linux

P = TypeVar("P", bound=asyncio.BaseProtocol)


@dataclass(frozen=True)
class Address:
    """A host and a port, or the path of a Unix socket. "@name" is an abstract socket of Linux."""

    host: str
    port: int
    path: str = ""
    tls: TLS | None = None  # None: plain text

    @classmethod
    def parse(cls, text: str, port: int | None = None, tls: TLS | None = None) -> Address:
        """Parse "host", "host:port", "[::1]:port", "tls://host", "unix:/path" or "unix:@name"."""
        encrypted = text.startswith("tls:")
        if tls and not encrypted:
            raise ValueError(f"expected tls://host:port with tls, got {text!r}")
        if text.startswith("unix:"):
            return cls._unix(text.removeprefix("unix:").removeprefix("//"), port)
        if encrypted:
            tls = tls or TLS()
            tls.context()  # reports faults in its files now
        host = text.removeprefix("tls:").removeprefix("//") if encrypted else text
        if (port is None and host.count(":") == 1) or (host.startswith("[") and "]:" in host):
            host, _, digits = host.rpartition(":")
            if not digits.isdecimal():
                raise ValueError(f"expected a port after the colon, got {digits!r}")
            port = int(digits)
        host, port = host.strip("[]"), DEFAULT_PORT if port is None else port
        if not host or not 0 < port < 1 << 16:
            raise ValueError(f"expected a host and a port from 1 to 65535, or unix:/path, got {host!r} and {port}")
        return cls(host, port, tls=tls)

    @classmethod
    def _unix(cls, path: str, port: int | None) -> Address:
        size = len(os.fsencode(path))
        if port is not None:
            raise ValueError(f"expected unix:{path} alone, as a Unix socket has no port, got {port}")
        if path in ("", "@") or "\0" in path or size > LONGEST:
            raise ValueError(f"expected a path of 1 to {LONGEST} bytes after unix:, or @name, got {size}: {path!r}")
        if not hasattr(socket, "AF_UNIX"):
            raise ValueError(f"expected a host and a port, as this system has no Unix sockets, got unix:{path}")
        return cls("", 0, path)

    def __str__(self) -> str:
        """The address in the form that users write."""
        if self.path:
            return f"unix:{self.path}"
        scheme = "tls://" if self.tls else ""
        return f"{scheme}[{self.host}]:{self.port}" if ":" in self.host else f"{scheme}{self.host}:{self.port}"

    @property
    def _name(self) -> str:
        """The path in the form of the system calls."""
        return "\0" + self.path[1:] if self.path.startswith("@") else self.path

    def connect(self, timeout: float) -> socket.socket | Encrypted:
        """Connect within ``timeout`` seconds."""
        if not self.path:
            until = time.monotonic() + timeout
            sock = socket.create_connection((self.host, self.port), timeout)
            if not self.tls:
                return sock
            return Encrypted(sock, self.tls.context(), self.tls.server_name or self.host, until - time.monotonic())
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(timeout)
            sock.connect(self._name)
        except BaseException:
            sock.close()
            raise
        return sock

    async def open(self, make: Callable[[], P]) -> P:
        """Connect, and return the protocol, made by ``make``, that has the connection."""
        loop = asyncio.get_running_loop()
        if self.path:
            return (await loop.create_unix_connection(make, self._name))[1]
        if not self.tls:
            return (await loop.create_connection(make, self.host, self.port))[1]
        context, name = self.tls.context(), self.tls.server_name or self.host
        return (await loop.create_connection(make, self.host, self.port, ssl=context, server_hostname=name))[1]

    def unreachable(self, error: Exception) -> str:
        """Why there is no connection."""
        late = isinstance(error, TimeoutError | asyncio.TimeoutError)
        why = f"{self}: {str(error) or ('timed out' if late else type(error).__name__)}"
        if self.path and isinstance(error, FileNotFoundError | ConnectionRefusedError):
            why += "; expected the path of a socket on which a server listens"
        elif self.tls and (
            isinstance(error, ssl.SSLEOFError | ConnectionResetError | BrokenPipeError)
            or (isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"))
        ):
            why += "; expected a server that speaks TLS there"
        elif self.tls and "not yet valid" in str(error):
            why += f"; the clock of this machine says {time.strftime('%Y-%m-%d %H:%M')}"
        elif self.path and isinstance(error, PermissionError):
            why += "; the server's socket_mode, socket_owner and socket_group say who may connect"
        return why

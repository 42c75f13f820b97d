"""Where a server listens."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

DEFAULT_PORT = 6174
LONGEST = 107  # bytes of a Unix socket's path, as Linux has them

P = TypeVar("P", bound=asyncio.BaseProtocol)


@dataclass(frozen=True)
class Address:
    """A host and a port, or the path of a Unix socket. "@name" is an abstract one of Linux, which has no file."""

    host: str
    port: int
    path: str = ""

    @classmethod
    def parse(cls, text: str, port: int | None = None) -> Address:
        """What a user gave: "host", "host:port", "[::1]:port", "unix:/path", "unix:@name"."""
        if text.startswith("unix:"):
            return cls._unix(text.removeprefix("unix:").removeprefix("//"), port)
        host = text
        if (port is None and host.count(":") == 1) or (host.startswith("[") and "]:" in host):
            host, _, digits = host.rpartition(":")
            if not digits.isdecimal():
                raise ValueError(f"expected a port behind the colon, got {digits!r}")
            port = int(digits)
        host, port = host.strip("[]"), DEFAULT_PORT if port is None else port
        if not host or not 0 < port < 1 << 16:
            raise ValueError(f"expected a host and a port from 1 to 65535, or unix:/path, got {host!r} and {port}")
        return cls(host, port)

    @classmethod
    def _unix(cls, path: str, port: int | None) -> Address:
        size = len(os.fsencode(path))
        if port is not None:
            raise ValueError(f"expected unix:{path} alone, as a Unix socket has no port, got {port}")
        if path in ("", "@") or "\0" in path or size > LONGEST:
            raise ValueError(f"expected a path of 1 to {LONGEST} bytes behind unix:, or @name, got {size}: {path!r}")
        if not hasattr(socket, "AF_UNIX"):
            raise ValueError(f"expected a host and a port, as this system has no Unix sockets, got unix:{path}")
        return cls("", 0, path)

    def __str__(self) -> str:
        """As a user gives it."""
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def _name(self) -> str:
        """The path as the system calls take it."""
        return "\0" + self.path[1:] if self.path.startswith("@") else self.path

    def connect(self, timeout: float) -> socket.socket:
        """Connect within so many seconds."""
        if not self.path:
            return socket.create_connection((self.host, self.port), timeout)
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(timeout)
            sock.connect(self._name)
        except BaseException:
            sock.close()
            raise
        return sock

    async def open(self, make: Callable[[], P]) -> P:
        """Connect, and give the connection to a protocol."""
        loop = asyncio.get_running_loop()
        if self.path:
            return (await loop.create_unix_connection(make, self._name))[1]
        return (await loop.create_connection(make, self.host, self.port))[1]

    def unreachable(self, error: Exception) -> str:
        """Why there is no connection."""
        why = f"{self}: {str(error) or 'timed out'}"
        if self.path and isinstance(error, FileNotFoundError | ConnectionRefusedError):
            why += "; expected the path of a socket on which a server listens"
        elif self.path and isinstance(error, PermissionError):
            why += "; the server's socket_mode, socket_owner and socket_group say who may connect"
        return why

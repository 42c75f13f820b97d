"""A server down to its bytes, which tests may corrupt: ZMTP on a plain socket."""

from __future__ import annotations

import json
import random
import socket
import struct
from typing import Any

from echo_model import ROW

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL" + bytes(16) + b"\1" + bytes(31)
ID = b"12345678"


def frame(body: bytes, flags: int = 0, size: int | None = None) -> bytes:
    size = len(body) if size is None else size
    return (bytes((flags, size)) if size < 256 else struct.pack(">BQ", flags | 2, size)) + body


def message(*bodies: bytes) -> bytes:
    return b"".join(frame(body, int(i < len(bodies) - 1)) for i, body in enumerate(bodies))


def command(name: bytes, body: bytes = b"") -> bytes:
    return frame(bytes((len(name),)) + name + body, 4)


def ready(kind: bytes = b"ROUTER") -> bytes:
    return command(b"READY", b"\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind)


def welcome(**changes: Any) -> bytes:
    head = {"protocol": 4, "server": "raw", "heartbeat_ms": 200, "dead_after_ms": 5000, "batched": True, **changes}
    return message(b"welcome", json.dumps(head).encode())


def batch(batch_id: bytes = ID, rows: int = 1) -> bytes:
    head = {"rows": rows, "inputs": [{"name": "x", "datatype": "FP32", "shape": [rows, 2]}], "timeout_ms": 1000.5}
    return message(b"batch", batch_id, json.dumps(head).encode(), ROW * rows)


class Peer:
    """One connection of a container."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        sock.settimeout(20)
        self._read = b""

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def exactly(self, count: int) -> bytes:
        while len(self._read) < count:
            data = self.socket.recv(1 << 20)
            if not data:
                raise EOFError
            self._read += data
        data, self._read = self._read[:count], self._read[count:]
        return data

    def frame(self) -> tuple[int, bytes]:
        flags = self.exactly(1)[0]
        (size,) = struct.unpack(">Q", self.exactly(8)) if flags & 2 else self.exactly(1)
        return flags, self.exactly(size)

    def message(self) -> list[bytes]:
        """The next message; commands before it are skipped."""
        frames = []
        while True:
            flags, body = self.frame()
            if not flags & 4:
                frames.append(body)
                if not flags & 1:
                    return frames

    def handshake(self) -> list[bytes]:
        """Greet and become ready; the container's hello."""
        self.send(GREETING)
        assert self.exactly(64)[:12] == GREETING[:12]
        self.send(ready())
        flags, body = self.frame()
        assert (flags, body[:6]) == (4, b"\x05READY")
        return self.message()

    def serve(self) -> None:
        """A correct session: one batch, answered with its input."""
        assert self.handshake()[0] == b"hello"
        self.send(welcome() + batch())
        while (frames := self.message())[0] != b"result":
            pass
        assert frames[1] == ID
        assert frames[3] == ROW

    def gone(self) -> bool:
        """Read until the container hangs up; True if it does."""
        try:
            while True:
                self.exactly(1)
        except (EOFError, ConnectionError):
            return True
        except TimeoutError:
            return False


class Raw:
    """A listening socket."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.settimeout(20)
        self.endpoint = f"127.0.0.1:{self.socket.getsockname()[1]}"

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def accept(self) -> Peer:
        return Peer(self.socket.accept()[0])


def mutated(units: list[bytes], rng: random.Random) -> list[bytes]:
    """The units of a conversation with a fault in their order, or in one of the lengths."""
    units = list(units)
    for _ in range(rng.randint(1, 3)):
        i = rng.randrange(len(units))
        unit = units[i]
        match rng.randrange(9):
            case 0:
                del units[i]
            case 1:
                units.insert(i, unit)
            case 2:
                j = rng.randrange(len(units))
                units[i], units[j] = units[j], unit
            case 3:
                units[i] = unit[: rng.randrange(len(unit) + 1)]
            case 4:
                units[i] = bytes((unit[0] ^ 1 << rng.randrange(8),)) + unit[1:] if unit else b""
            case 5:
                units[i] = frame(unit[2:], rng.choice((0, 1, 4)), rng.choice((0, 255, 256, 1 << 20, 1 << 47, 2**63)))
            case 6:
                at = rng.randrange(len(unit) + 1)
                units[i] = unit[:at] + rng.choice((command(b"PING", bytes(2)), batch(), b"\0\0", b"\1\0")) + unit[at:]
            case 7:
                at = rng.randrange(len(unit) + 1)
                units[i] = unit[:at] + rng.randbytes(rng.randint(1, 9)) + unit[at + rng.randint(0, 9) :]
            case 8:
                units[i] = unit * (rng.choice((3, 300)) if len(unit) < 400 else 2)
        units = units or [b""]
    return units

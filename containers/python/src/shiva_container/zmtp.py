"""ZMTP 3.1 as a DEALER speaks it, with the NULL mechanism: bytes to messages, messages to bytes.

No socket and no clock: the bytes of a connection go into a :class:`Decoder`, messages come out, and
the protocol's own replies (READY, PONG) are collected in ``replies``.
https://rfc.zeromq.org/spec/37/
"""

from __future__ import annotations

import struct

from .memory import MEMORY
from .tensors import Buffer

MORE, LONG, COMMAND = 1, 2, 4
"""The flags of a frame; all other bits are reserved and zero."""

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)

LARGE = 16 << 10
"""A frame of this size or more has memory of its own, unless all of it arrives at once.

It is sent without a copy.
"""

MAX_FRAMES = 4096
"""The most frames of a message. Feedback has three tensors for each declared one, at most 255."""
MAX_COMMAND = 4096
MAX_CONTEXT = 16
"""The most bytes of a PING that its PONG repeats."""

_LENGTH = struct.Struct(">Q")
_LONG_HEADS = [bytes((flags | LONG,)) for flags in (0, MORE)]
_SHORT_HEADS = [[bytes((flags, size)) for size in range(256)] for flags in (0, MORE)]
"""The header of a frame by its flag: all of it for short frames, the first byte of long ones."""


class ProtocolError(Exception):
    """The peer does not speak ZMTP as a server for containers does; the text says where."""


class Decoder:
    """The receiving half of a connection. An error ends it, after the messages before it."""

    def __init__(self) -> None:
        self.greeted = False
        self.ready = False
        """Whether the peer's READY has arrived, so that messages may be sent."""
        self.error = ""
        """The error, after which no bytes may be fed."""
        self.reported = ""
        """Why the peer has ended the connection, if it has said so."""
        self.replies: list[bytes] = []
        """Messages of the protocol itself to be sent; the caller empties it."""
        self.target: memoryview | None = None
        """The memory for the next bytes while a large frame is incomplete; see :meth:`filled`."""
        self.partial = 0
        """How many bytes of an incomplete message have arrived."""
        self._rest = b""
        self._frames: list[Buffer] = []
        self._size = 0
        self._frame: memoryview | None = None
        self._last = False

    def filled(self, count: int) -> list[list[Buffer]]:
        """Note that ``count`` bytes are in ``target``; the message, if they complete it."""
        assert self._frame is not None
        assert self.target is not None
        self.partial += count
        if count < len(self.target):
            self.target = self.target[count:]
            return []
        self._frames.append(self._frame.toreadonly())
        self._frame = self.target = None
        if not self._last:
            return []
        self.partial = self._size = 0
        frames, self._frames = self._frames, []
        return [frames]

    def feed(self, data: bytes) -> list[list[Buffer]]:
        """Take received bytes; the messages that they complete. Only while ``target`` is None."""
        messages: list[list[Buffer]] = []
        try:
            self._feed(data, messages)
        except ProtocolError as e:
            self.error = str(e)
        self.partial = self._size + len(self._rest) - (0 if self.target is None else len(self.target))
        return messages

    def _feed(self, data: bytes, messages: list[list[Buffer]]) -> None:
        if self._rest:
            data, self._rest = self._rest + data, b""
        at, end = 0, len(data)
        pinged: bytes | None = None
        if not self.greeted:
            at = self._greeting(data)
        while self.greeted and end - at >= 2:
            flags, size, body = data[at], data[at + 1], at + 2
            if flags > MORE:
                if flags > MORE | LONG | COMMAND or flags & (MORE | COMMAND) == MORE | COMMAND:
                    raise ProtocolError(f"frame flags {flags:#04x}")
                if flags & LONG:
                    body = at + 9
                    if end < body:
                        break
                    (size,) = _LENGTH.unpack_from(data, at + 1)
                if flags & COMMAND:
                    if self._frames:
                        raise ProtocolError("a command inside a message")
                    if size > MAX_COMMAND:
                        raise ProtocolError(f"a command of {size} bytes, limit {MAX_COMMAND}")
                    if body + size > end:
                        break
                    at = body + size
                    pinged = self._command(data[body:at], pinged)
                    continue
            frames, stop = self._frames, body + size
            if not self.ready:
                raise ProtocolError("a message before READY")
            if len(frames) >= MAX_FRAMES:
                raise ProtocolError(f"a message of more than {MAX_FRAMES} frames")
            if stop > end:
                if size >= LARGE:
                    self._begin(size, flags & MORE == 0, data[body:end])
                    at = end
                break
            frames.append(data[body:stop])
            self._size += size
            at = stop
            if not flags & MORE:
                messages.append(frames)
                self._frames, self._size = [], 0
        if at < end:
            self._rest = data[at:]
        if pinged is not None:  # of several PINGs in one read, only the last is answered
            self.replies.append(command(b"PONG", pinged))

    def _begin(self, size: int, last: bool, part: bytes) -> None:
        """Allocate a large frame and copy its first part.

        The system provides the pages one by one, as the bytes arrive.
        """
        try:
            self._frame = MEMORY.take(size)
        except (MemoryError, ValueError) as e:
            raise ProtocolError(f"no memory for a frame of {size} bytes") from e
        self._frame[: len(part)] = part
        self.target = self._frame[len(part) :]
        self._size += size
        self._last = last

    def _greeting(self, data: bytes) -> int:
        """Check as much of the greeting as has arrived, and reply once it is complete.

        Returns the number of bytes that it used.
        """
        if data[:1] != b"\xff":
            raise ProtocolError(f"{data[:20]!r} is not a ZeroMQ greeting")
        if len(data) > 9 and data[9] != 0x7F:
            raise ProtocolError(f"byte 9 of its greeting is {data[9]:#04x}, not 0x7f")
        if len(data) > 10 and data[10] < 3:
            raise ProtocolError(f"it speaks ZMTP {data[10]}, not 3")
        if len(data) < len(GREETING):
            return 0
        mechanism = data[12:32].rstrip(b"\0")
        if mechanism != b"NULL":
            raise ProtocolError(f"its security mechanism is {mechanism!r}, not NULL")
        self.greeted = True
        self.replies.append(READY)
        return len(GREETING)

    def _command(self, body: bytes, pinged: bytes | None) -> bytes | None:
        """Execute a command; the context of the PING to be answered."""
        name, rest = _named(body, "command")
        if name == b"ERROR":
            text = rest[1:256].decode(errors="replace")
            self.reported = "".join(c if c.isprintable() else " " for c in text)
            raise ProtocolError(f"the peer reports {rest[1:256]!r}")
        if not self.ready:
            if name != b"READY":
                raise ProtocolError(f"command {name[:32]!r} instead of READY")
            _check_ready(rest)
            self.ready = True
        elif name == b"PING":
            if not 2 <= len(rest) <= 2 + MAX_CONTEXT:  # its time to live is first
                raise ProtocolError(f"a PING of {len(rest)} bytes")
            return rest[2:]
        return pinged


def _named(data: bytes, what: str) -> tuple[bytes, bytes]:
    """A name after the byte of its length, and the rest."""
    size = data[0] if data else 0
    if not size or len(data) < 1 + size:
        raise ProtocolError(f"a {what} has no name, or ends inside it")
    return data[1 : 1 + size], data[1 + size :]


def _check_ready(properties: bytes) -> None:
    kind = b""
    while properties:
        name, rest = _named(properties, "property of READY")
        size = int.from_bytes(rest[:4], "big")
        if len(rest) < 4 + size:
            raise ProtocolError(f"property {name[:32]!r} of READY is cut short")
        if name.lower() == b"socket-type":
            kind = rest[4 : 4 + size]
        properties = rest[4 + size :]
    if kind != b"ROUTER":
        raise ProtocolError(f"it is a {kind[:32]!r} socket, not a ROUTER")


def command(name: bytes, body: bytes) -> bytes:
    """A command frame; short ones only, as all of ours are."""
    return bytes((COMMAND, 1 + len(name) + len(body), len(name))) + name + body


READY = command(b"READY", b"\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0")


def encode(frames: list[Buffer]) -> list[Buffer]:
    """A message as pieces to be written one after the other: few, as small frames are joined."""
    pieces: list[Buffer] = []
    small: list[Buffer] = []
    left = len(frames)
    for frame in frames:
        left -= 1
        size = len(frame)
        if size < 256:
            small += (_SHORT_HEADS[left > 0][size], frame)
        elif size < LARGE:
            small += (_LONG_HEADS[left > 0], _LENGTH.pack(size), frame)
        else:
            small += (_LONG_HEADS[left > 0], _LENGTH.pack(size))
            pieces += (b"".join(small), frame)
            small = []
    if small:
        pieces.append(b"".join(small))
    return pieces

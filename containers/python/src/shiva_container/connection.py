"""One connection to a server: a socket that never blocks, with TLS on it or without, and ZMTP."""

from __future__ import annotations

import os
import socket
from collections import deque

from . import zmtp
from .secure import RECORD, TLS, Encrypted, os_error_text
from .tensors import Buffer

_CHUNK = 64 << 10
_PIECES = 64
"""Pieces given to one system call; the least that systems take is 16, Linux takes 1024."""
_UNREACHABLE_MS = 15_000
"""How long the other machine may leave sent bytes without an acknowledgement. While an announced
message arrives, which may take long, nothing else would show that its cable was cut."""


class Lost(Exception):
    """The connection has ended; the text says how."""


class Connection:
    """A connection from the first attempt to its end. One thread at a time may use it."""

    def __init__(self, endpoint: str, tls: TLS | None = None) -> None:
        """Start to connect to ``tcp://addr:port``, ``tls://[name@]addr:port``, ``ipc://path``.

        Raises OSError, and ValueError if a file of ``tls`` is wrong.
        """
        self._context = (tls or TLS()).context() if endpoint.startswith("tls://") else None
        self._at_once = RECORD if self._context else _CHUNK
        """The most bytes that a read returns."""
        self._name = tls.server_name if tls and tls.server_name else _server_name(endpoint)
        self.socket: socket.socket | Encrypted = _socket(endpoint)
        self.reached = False
        """Whether a server listens there."""
        self.connected = False
        """Whether bytes of ZMTP can flow both ways: with TLS, once its handshake is over."""
        self.drained = False
        """Whether the last read emptied the socket, so that the next can wait for the poller."""
        self.partial = 0
        """How many bytes of an incomplete message have arrived."""
        self._failed = ""
        self.unsent = True
        """Whether the socket has to become writable before this connection continues."""
        self.open = False
        """Whether the handshake is over, so that messages may be sent."""
        self._decoder = zmtp.Decoder()
        self._unsent: deque[Buffer] = deque()
        try:
            self._connect(endpoint)
        except OSError:
            self.socket.close()
            raise

    @property
    def pending(self) -> bool:
        """Whether bytes have arrived that no poller reports."""
        return isinstance(self.socket, Encrypted) and self.socket.pending

    @property
    def reported(self) -> str:
        """Why the server has ended the connection, if it has said so."""
        return self._decoder.reported

    def receive(self) -> list[list[Buffer]] | None:
        """Read once; the messages that this completed, or None if there was nothing to read.

        Raises Lost if the connection has ended and all messages have been returned.
        """
        if not self.connected:
            self.flush()
            if not self.connected:
                return None
        decoder = self._decoder
        if decoder.error:
            raise Lost(f"the peer is not a server for containers: {decoder.error}")
        target = decoder.target
        try:
            if target is None:
                data = self.socket.recv(_CHUNK)
                count, most = len(data), self._at_once
            else:
                count, most = self.socket.recv_into(target), min(len(target), self._at_once)
        except (BlockingIOError, InterruptedError):
            if self._failed:  # and all earlier bytes have been read
                raise Lost(self._failed) from None
            return None
        except OSError as e:
            raise Lost(os_error_text(e)) from e
        if not count:
            raise Lost("closed inside a message" if decoder.partial else "")
        messages = decoder.feed(data) if target is None else decoder.filled(count)
        self.partial = decoder.partial
        self.open = decoder.ready
        self.drained = count < most and not decoder.error
        if decoder.replies:
            self._unsent.extend(decoder.replies)  # between messages: the last is a whole one
            decoder.replies.clear()
            self.flush()
        return messages

    def send(self, frames: list[Buffer]) -> None:
        """Send as much of a message as the socket takes; ``flush`` sends the rest.

        Frames must not change any more.
        """
        pieces = zmtp.encode(frames)
        if not self._unsent and len(pieces) == 1:
            try:
                sent = self.socket.send(pieces[0])
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as e:
                self._fail(e)
                return
            if sent < len(pieces[0]):
                self._unsent.append(memoryview(pieces[0])[sent:])
                self.unsent = True
            return
        self._unsent.extend(pieces)
        self.flush()

    def flush(self) -> None:
        """Send the rest of the messages given to ``send``, as far as the socket takes it.

        An error is raised by a later ``receive``, once all bytes that have arrived are read.
        """
        self.unsent = True
        if not self.connected:
            self._connected()
        unsent = self._unsent
        while unsent and self.connected:
            try:
                count = self.socket.sendmsg([unsent[i] for i in range(min(len(unsent), _PIECES))])
            except (BlockingIOError, InterruptedError):
                return
            except OSError as e:
                self._fail(e)
                return
            while unsent and count >= len(unsent[0]):
                count -= len(unsent.popleft())
            if count:
                unsent[0] = memoryview(unsent[0])[count:]
        if isinstance(self.socket, Encrypted):
            self.unsent = not self.connected and self.socket.wants_write
        else:
            self.unsent = not self.connected

    def finish(self) -> bool:
        """Send the rest, half-close, and read until the peer closes, too. False when that is done.

        A socket that is closed with unread bytes is reset, and the last bytes sent may be lost.
        """
        try:
            self.flush()
        except Lost:  # it was never connected, and the handshake has the same error
            return False
        if self._failed or not self.connected:
            return False
        try:
            if not self._unsent:
                self.socket.shutdown(socket.SHUT_WR)
            while self.socket.recv(_CHUNK):
                pass
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Close the socket at once."""
        self.socket.close()

    def _connect(self, endpoint: str) -> None:
        self._unsent.append(zmtp.GREETING)
        assert isinstance(self.socket, socket.socket)
        code = self.socket.connect_ex(_address(endpoint))
        if code and not isinstance(error := OSError(code, os.strerror(code)), BlockingIOError):
            raise error

    def _connected(self) -> None:
        """Find out whether the attempt has succeeded."""
        if isinstance(self.socket, socket.socket):
            if code := self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise Lost(os.strerror(code))
            try:
                self.socket.getpeername()
            except OSError:
                return
            self.reached = True
            if self._context:
                self.socket = Encrypted(self.socket, self._context, self._name)
        try:
            self.connected = self.socket.shake() if isinstance(self.socket, Encrypted) else True
        except OSError as e:
            raise Lost(f"no TLS with the server: {os_error_text(e)}") from e

    def _fail(self, error: OSError) -> None:
        self._failed = f"cannot send: {os_error_text(error)}"
        self._unsent.clear()
        self.unsent = False


def _socket(endpoint: str) -> socket.socket:
    if endpoint.startswith("ipc://"):
        made = socket.socket(socket.AF_UNIX)
    else:
        made = socket.socket(socket.AF_INET6 if "[" in endpoint else socket.AF_INET)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREACHABLE_MS)
    made.setblocking(False)
    return made


def _address(endpoint: str) -> str | tuple[str, int]:
    if path := endpoint.removeprefix("ipc://") if endpoint.startswith("ipc://") else "":
        return "\0" + path[1:] if path.startswith("@") else path
    host, _, port = endpoint.partition("://")[2].rpartition("@")[2].rpartition(":")
    return host.strip("[]"), int(port)


def _server_name(endpoint: str) -> str:
    name, _, address = endpoint.partition("://")[2].rpartition("@")
    return name or address.rpartition(":")[0].strip("[]")

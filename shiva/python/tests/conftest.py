from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from shiva_client import Message, wire

Handler = Callable[[Message], Message | None]


def echo(message: Message) -> Message:
    return Message(message.namespace, message.metadata, message.tensors)


class Server:
    """A Shiva server of one handler, whose answer None ends the connection."""

    def __init__(self, path: Path | None = None, handler: Handler = echo) -> None:
        """Listen on a Unix socket at path, or on a free port."""
        self.path = path
        self.handler = handler
        self.encoded = b""  # the answer to everything, if there is one
        self.seen: list[Message] = []
        self.connections = 0
        self.port = 0
        self._listen()

    def _listen(self) -> None:
        if self.path:
            self.path.unlink(missing_ok=True)
            self._listener = socket.create_server(str(self.path), family=socket.AF_UNIX)
            self.address = f"unix:{self.path}"
        else:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            self.port = self._listener.getsockname()[1]
            self.address = f"127.0.0.1:{self.port}"
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.add(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        decoder = wire.Decoder()
        with sock, suppress(ConnectionError):
            while n := sock.recv_into(decoder.buffer()):
                for message in decoder.advance(n):
                    self.seen.append(message)
                    if self.encoded:
                        sock.sendall(self.encoded)
                        continue
                    answer = self.handler(message)
                    if not answer:
                        return
                    for piece in wire.encode(answer):
                        sock.sendall(piece)

    def restart(self) -> None:
        """End all connections in the middle, and listen again."""
        self.close()
        for sock in self._open:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._listen()

    def close(self) -> None:
        # Closing does not wake accept.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture(params=["tcp", "unix"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "s" if request.param == "unix" else None)
    yield server
    server.close()

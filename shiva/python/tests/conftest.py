from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from shiva_client import Message, wire

Handler = Callable[[Message], Message | None]


def echo(message: Message) -> Message:
    return Message(message.namespace, message.metadata, message.tensors)


class Server:
    """A Shiva server of one handler, whose answer None ends the connection."""

    def __init__(self, handler: Handler = echo) -> None:
        self.handler = handler
        self.seen: list[Message] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        decoder = wire.Decoder()
        with sock:
            while n := sock.recv_into(decoder.buffer()):
                for message in decoder.advance(n):
                    self.seen.append(message)
                    answer = self.handler(message)
                    if answer is None:
                        return
                    sock.sendall(b"".join(wire.encode(answer)))

    def close(self) -> None:
        # Closing does not wake accept.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()

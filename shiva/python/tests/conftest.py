from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from shiva_client import Message, ProtocolError, wire

Handler = Callable[[Message], Message | None]


def echo(message: Message) -> Message:
    return Message(message.namespace, message.metadata, message.tensors)


class Server:
    """A Shiva server with one handler; None as its answer ends the connection."""

    def __init__(
        self, path: Path | None = None, handler: Handler = echo, context: ssl.SSLContext | None = None
    ) -> None:
        """Listen on a Unix socket at path, or on a free port, with TLS if a context is given."""
        self.path = path
        self.context = context
        self.handler = handler
        self.encoded = b""  # if not empty, the answer to everything
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
            self.address = f"{'tls://' if self.context else ''}127.0.0.1:{self.port}"
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            if not self.path:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # it sends in pieces
            if self.context:
                sock = self.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            self.connections += 1
            self._open.add(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        decoder = wire.Decoder()
        with sock, suppress(ConnectionError, ssl.SSLError, ProtocolError):
            if isinstance(sock, ssl.SSLSocket):
                sock.do_handshake()
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
        """Break all connections, and listen again."""
        self.kill()
        self._listen()

    def kill(self) -> None:
        """Break all connections, and stop listening."""
        self.close()
        for sock in self._open:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        # Closing does not wake accept.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class Authority:
    """Signs certificates for tests."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir()
        self.ca = self._openssl("req", "-x509", "-subj", "/CN=authority", "-days", "2", name="ca")

    def _openssl(self, command: str, *args: str, name: str) -> Path:
        made = self._directory / f"{name}.pem"
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(self._key(name))]
        subprocess.run(["openssl", command, *key, *args, "-out", str(made)], check=True, capture_output=True)
        return made

    def _key(self, name: str) -> Path:
        return self._directory / f"{name}.key"

    def issue(self, name: str, names: str = "IP:127.0.0.1", days: int = 2) -> tuple[str, str]:
        """The files of a certificate for these names, and of its key."""
        request, made = self._openssl("req", "-new", "-subj", f"/CN={name}", name=name), self._directory / f"{name}.crt"
        extensions = self._directory / f"{name}.ext"
        extensions.write_text(f"subjectAltName={names}\n")
        signing = ["-CA", str(self.ca), "-CAkey", str(self._key("ca")), "-CAcreateserial", "-extfile", str(extensions)]
        subprocess.run(
            ["openssl", "x509", "-req", "-in", str(request), *signing, "-days", str(days), "-out", str(made)],
            check=True, capture_output=True,
        )  # fmt: skip
        return str(made), str(self._key(name))

    def serving(self, *files: str, asks: bool = False) -> ssl.SSLContext:
        """A server's context with a certificate and its key, which asks clients for theirs."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*files)
        if asks:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.ca)
        return context


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates") / "ours")


@pytest.fixture(scope="session")
def secure(authority: Authority) -> ssl.SSLContext:
    return authority.serving(*authority.issue("server"))


@pytest.fixture(params=["tcp", "unix", "tls"])
def server(
    request: pytest.FixtureRequest, tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    if request.param == "tls":
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
        server = Server(context=request.getfixturevalue("secure"))
    else:
        server = Server(tmp_path / "s" if request.param == "unix" else None)
    yield server
    server.close()

"""Containers over TLS: which certificates are trusted, the errors, and the same bytes."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from echo_model import ROW, ask, echo
from fake_server import Fake
from raw_server import Raw
from shiva_container import TLS, Container, link
from shiva_container.addresses import Address


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


class Authority:
    """Signs certificates, whose files are in a directory."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.name = name
        self.ca = self._file(name, ".pem")
        self._new(name, "-x509", "-days", "30", "-out", self.ca)

    def _file(self, name: str, end: str) -> str:
        return str(self.directory / f"{self.name}-{name}{end}")

    def _new(self, name: str, *more: str) -> None:
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        openssl("req", *key, "-keyout", self._file(name, ".key"), "-subj", f"/CN={name}", *more)

    def issue(self, name: str, names: str = "IP:127.0.0.1,DNS:localhost", *, expired: bool = False) -> tuple[str, str]:
        """The files of a certificate and its key."""
        request, certificate = self._file(name, ".csr"), self._file(name, ".pem")
        self._new(name, "-out", request, "-addext", f"subjectAltName={names}")
        days = ("-days", "-1" if expired else "30")
        trust = ("-CA", self.ca, "-CAkey", self._file(self.name, ".key"), "-copy_extensions", "copy")
        openssl("x509", "-req", "-in", request, *trust, *days, "-out", certificate)
        return certificate, self._file(name, ".key")


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other"), "other")


class Proxy:
    """Speaks TLS in front of a plain server, in pieces of a size, even a byte at a time."""

    def __init__(self, target: str, own: tuple[str, str], clients: str | None = None, piece: int = 1 << 16) -> None:
        host, _, port = target.rpartition("//")[2].rpartition(":")
        self._target = host, int(port)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*own)
        if clients:
            self._context.load_verify_locations(clients)
            self._context.verify_mode = ssl.CERT_REQUIRED
        self._piece = piece
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tls://127.0.0.1:{self._socket.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._open: list[socket.socket] = []
        self._threads[0].start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._threads[0].join()
        for one in self._open:
            with suppress(OSError):
                socket.socket.shutdown(one, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                raw, _ = self._socket.accept()
            except OSError:
                return
            self._open.append(raw)
            thread = threading.Thread(target=self._serve, args=(raw,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, raw: socket.socket) -> None:
        """One thread serves both directions: an SSL object is not for two threads."""
        near, far = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = self._context.wrap_bio(near, far, server_side=True)
        with raw, socket.create_connection(self._target) as plain, suppress(OSError):
            raw.settimeout(0.001)
            plain.settimeout(0.001)
            while True:
                if not self._pass(lambda: raw.recv(1 << 16), near.write):
                    return
                try:
                    while tls.version() is None or (data := tls.read(1 << 16)):
                        if tls.version() is None:
                            tls.do_handshake()
                        else:
                            plain.setblocking(True)
                            plain.sendall(data)
                            plain.settimeout(0.001)
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLError:
                    raw.sendall(far.read())
                    raise
                if tls.version() is not None and not self._pass(lambda: plain.recv(1 << 20), tls.write):
                    return
                data = far.read()
                raw.setblocking(True)
                for at in range(0, len(data), self._piece):
                    raw.sendall(data[at : at + self._piece])
                raw.settimeout(0.001)

    @staticmethod
    def _pass(read: Callable[[], bytes], write: Callable[[bytes], Any]) -> bool:
        try:
            data = read()
        except TimeoutError:
            return True
        if data:
            write(data)
        return bool(data)


@contextmanager
def encrypted(own: tuple[str, str], clients: str | None = None, piece: int = 1 << 16) -> Iterator[tuple[Fake, str]]:
    """A server and its TLS address."""
    with Fake(dead_after_ms=3_600_000) as fake, Proxy(fake.endpoint, own, clients, piece) as proxy:
        yield fake, proxy.endpoint


@pytest.mark.parametrize("piece", [1, 1 << 16])
def test_answers_are_what_was_asked(ours: Authority, piece: int) -> None:
    rows = [1, 3, 2000] if piece == 1 else [1, 3, 2000, 100_001]
    with (
        encrypted(ours.issue("server"), piece=piece) as (fake, endpoint),
        Container(echo(), servers=endpoint, tls=TLS(ca=ours.ca)),
    ):
        peer, _ = fake.hello()
        for count in rows:
            data = bytes(i * 31 % 251 for i in range(251)) * (count * len(ROW) // 251 + 1)
            data = data[: count * len(ROW)]
            batch = fake.batch(peer, count, [("x", "FP32", [count, 2], data)])
            assert fake.result(batch)[1] == [data]


def test_a_certificate_of_the_container(ours: Authority) -> None:
    own = ours.issue("camera", "DNS:camera")
    with (
        encrypted(ours.issue("server"), clients=ours.ca) as (fake, endpoint),
        Container(echo(), servers=endpoint, tls=TLS(ca=ours.ca, certificate=own[0], key=own[1])),
    ):
        assert "outputs" in fake.result(ask(fake, fake.hello()[0]))[0]


def test_a_name_is_what_the_certificate_is_of(ours: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    model = echo()
    with encrypted(ours.issue("server", "DNS:shivad.example")) as (fake, endpoint):
        port = int(endpoint.rpartition(":")[2])
        resolve = socket.getaddrinfo

        def lookup(host: str, *more: Any, **named: Any) -> Any:
            return resolve("127.0.0.1" if host == "shivad.example" else host, *more, **named)

        with monkeypatch.context() as patch:
            patch.setattr(socket, "getaddrinfo", lookup)
            resolved = Address.parse(f"tls://shivad.example:{port}").resolve()
            assert resolved == [f"tls://shivad.example@127.0.0.1:{port}"]
            with Container(model, servers=f"tls://shivad.example:{port}", tls=TLS(ca=ours.ca)):
                fake.hello()
        with Container(model, servers=endpoint, tls=TLS(ca=ours.ca, server_name="shivad.example")):
            fake.hello(2)
        with Container(model, servers=endpoint, tls=TLS(insecure=True)):
            fake.hello(3)


def says(caplog: pytest.LogCaptureFixture, *texts: str) -> None:
    """Wait until one line of the log has all texts."""
    until = time.monotonic() + 20
    while not any(all(text in line.getMessage() for text in texts) for line in caplog.records):
        assert time.monotonic() < until, caplog.text
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("of others", "its certificate is not trusted: unable to get local issuer certificate"),
        ("expired", "its certificate is not trusted: certificate has expired"),
        ("another name", "its certificate is not trusted: IP address mismatch"),
        ("none of its own", "certificate required"),
        ("one of others", "it refuses this container: unknown ca"),
    ],
)
def test_who_is_not_trusted(
    case: str, text: str, ours: Authority, other: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    own = ours.issue("server", "DNS:elsewhere" if case == "another name" else "IP:127.0.0.1", expired=case == "expired")
    stranger = other.issue("camera", "DNS:camera")
    tls = TLS(ca=other.ca if case == "of others" else ours.ca, certificate=None, key=None)
    if case == "one of others":
        tls = TLS(ca=ours.ca, certificate=stranger[0], key=stranger[1])
    clients = ours.ca if case in ("none of its own", "one of others") else None
    with encrypted(own, clients) as (fake, endpoint), Container(echo(), servers=endpoint, tls=tls):
        says(caplog, f"server {endpoint}", text)
        assert not fake.seen(b"hello")


def test_where_only_one_side_speaks_tls(ours: Authority, caplog: pytest.LogCaptureFixture) -> None:
    with (
        Raw() as plain,
        Container(echo(), servers=f"tls://{plain.endpoint}", tls=TLS(ca=ours.ca)),
        plain.accept() as peer,
    ):
        peer.send(b"\xff" + bytes(8) + b"\x7f\x03" + bytes(53))
        says(caplog, "it does not answer in TLS: is its address plain (tcp://)?")


def test_files_are_read_for_each_connection(
    ours: Authority, other: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    ca = ours.directory / "both.pem"
    ca.write_text(Path(other.ca).read_text())
    with encrypted(ours.issue("server")) as (fake, endpoint), Container(echo(), servers=endpoint, tls=TLS(ca=str(ca))):
        says(caplog, "is not trusted")
        ca.write_text("")
        says(caplog, "certificates in PEM expected in the file ca =")
        ca.write_text(Path(ours.ca).read_text())
        fake.hello()


def test_what_the_environment_says(ours: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    model = echo()
    certificate, key = ours.issue("camera", "DNS:camera")
    for what, value in (("CA", ours.ca), ("CERT", certificate), ("KEY", key), ("NAME", "shivad.example")):
        monkeypatch.setenv(f"SHIVA_TLS_{what}", value)
    assert TLS.from_environment() == TLS(ours.ca, certificate, key, "shivad.example")
    with encrypted(ours.issue("server", "DNS:shivad.example"), clients=ours.ca) as (fake, endpoint):
        monkeypatch.setenv("SHIVA_SERVERS", endpoint)
        with Container(model):
            fake.hello()
    monkeypatch.setenv("SHIVA_TLS_INSECURE", "maybe")
    with pytest.raises(ValueError, match=r"SHIVA_TLS_INSECURE: true or false expected, got 'maybe'"):
        Container(model, servers="tls://127.0.0.1:1")


def test_wrong_settings(ours: Authority, tmp_path: Path) -> None:
    model = echo()
    certificate, key = ours.issue("one")
    empty = tmp_path / "empty"
    empty.write_text("")
    for tls, match in [
        (TLS(ca=str(tmp_path / "none")), "expected in the file ca ="),
        (TLS(ca=str(empty)), "expected in the file ca ="),
        (TLS(certificate=certificate, key=ours.issue("two")[1]), "a certificate and its key, in PEM, expected"),
        (TLS(key=key), "the certificate of key = .* is missing"),
    ]:
        with pytest.raises(ValueError, match=match):
            Container(model, servers="tls://127.0.0.1:1", tls=tls)
    with pytest.raises(ValueError, match="a server tls://host:port is expected with tls"):
        Container(model, servers="127.0.0.1:1", tls=TLS())


def test_a_burst_that_ends_inside_a_record(ours: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that TLS has decrypted are read although no poller reports them."""
    monkeypatch.setattr(link, "_BURST", 1)
    with (
        encrypted(ours.issue("server")) as (fake, endpoint),
        Container(echo(), servers=endpoint, tls=TLS(ca=ours.ca)),
    ):
        peer, _ = fake.hello()
        data = ROW * 2049  # the last read of it leaves the following bytes in TLS
        batches = [fake.batch(peer, 2049, [("x", "FP32", [2049, 2], data)]) for _ in range(8)]
        for batch in batches:
            assert fake.result(batch)[1] == [data]

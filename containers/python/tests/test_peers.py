"""Unknown peers that listen in place of a server: each costs only its own connection."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import raw_server as raw
from echo_model import Held, echo
from raw_server import Peer, Raw
from shiva_container import Container, link, session


@pytest.fixture(autouse=True)
def back_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "FIRST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(link, "LAST_RETRY_SECONDS", 0.02)
    monkeypatch.setattr(link, "REFUSED_RETRY_SECONDS", 0.02)


@contextmanager
def served() -> Iterator[Raw]:
    with Raw() as server, Container(echo(), servers=server.endpoint) as container:
        yield server
        assert not container.wait(0)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is not a ZeroMQ greeting"),
        (raw.GREETING[:10] + b"\1", "ZMTP 1, not 3"),
        (raw.GREETING.replace(b"NULL", b"PLAI"), "mechanism is b'PLAI', not NULL"),
        (raw.GREETING + raw.ready(b"DEALER"), "it is a b'DEALER' socket, not a ROUTER"),
        (raw.GREETING + raw.message(b"welcome", b"{}"), "a message before READY"),
        (raw.GREETING + raw.ready() + raw.frame(b"", 0, 2**62), "no memory for a frame"),
    ],
)
def test_who_is_no_server_is_named_and_left(data: bytes, text: str, caplog: pytest.LogCaptureFixture) -> None:
    with served() as server:
        with server.accept() as peer:
            peer.send(data)
            assert peer.gone()
        with server.accept() as peer:
            peer.serve()
    assert text in caplog.text
    assert "is that the server's port for containers" in caplog.text


def test_after_welcome_an_error_ends_the_session(caplog: pytest.LogCaptureFixture) -> None:
    with served() as server:
        with server.accept() as peer:
            peer.handshake()
            peer.send(raw.welcome() + raw.frame(b"batch", 1) + raw.command(b"PING", bytes(2)))
            assert peer.gone()
        with server.accept() as peer:
            peer.serve()
    assert "connection lost: " in caplog.text
    assert "a command inside a message" in caplog.text


@pytest.mark.parametrize("before", [b"", raw.ready()])
def test_a_server_that_says_why_it_hangs_up(before: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """In place of its handshake or after it, and although it may not have read what was sent."""
    reason = b"more than containers.handshakes = 128 connections waited"
    with served() as server:
        with server.accept() as peer:
            peer.send(raw.GREETING + before + raw.command(b"ERROR", bytes((len(reason),)) + reason))
        with server.accept() as peer:
            peer.serve()
    assert f"the server ended the connection: {reason.decode()}; trying again" in caplog.text
    assert "is that the server's port" not in caplog.text


@pytest.mark.parametrize("data", [b"", raw.GREETING[:33], raw.GREETING, raw.GREETING + raw.ready() + b"\1"])
def test_silence_before_welcome_has_an_end(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "HANDSHAKE_SECONDS", 0.3)
    with served() as server:
        with server.accept() as peer:
            peer.send(data)
            assert peer.gone()
        monkeypatch.setattr(session, "HANDSHAKE_SECONDS", 20.0)
        for _ in range(50):  # a session that began earlier still has the short timeout
            with server.accept() as peer:
                try:
                    peer.serve()
                    return
                except (OSError, EOFError):
                    continue
        pytest.fail("it did not come back")


@pytest.mark.parametrize("part", [raw.batch()[:20], raw.frame(b"x", 1) + raw.frame(bytes(50_000), 0, 10 << 20)])
def test_half_a_message_and_silence(part: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with served() as server:
        with server.accept() as peer:
            peer.handshake()
            peer.send(raw.welcome(dead_after_ms=300, heartbeat_ms=100) + part)
            assert peer.gone()
        with server.accept() as peer:
            peer.serve()
    assert "silent for 0.3 s" in caplog.text


def test_a_message_that_crawls(caplog: pytest.LogCaptureFixture) -> None:
    with served() as server:
        with server.accept() as peer:
            peer.handshake()
            peer.send(raw.welcome(dead_after_ms=300, heartbeat_ms=100) + raw.frame(b"", 1, 250))
            try:
                for _ in range(250):
                    peer.send(b"x")
                    time.sleep(0.05)
            except OSError:
                pass
            else:
                pytest.fail("it has listened for 12 s")
        with server.accept() as peer:
            peer.serve()
    assert "silent for 0.3 s" in caplog.text


def test_a_server_that_reads_nothing_is_not_waited_for() -> None:
    """Answers wait in memory until they are read; heartbeats and the other server continue."""
    with Raw() as deaf, Raw() as other, Container(echo(), servers=[deaf.endpoint, other.endpoint]):
        peer = deaf.accept()
        with peer:
            peer.handshake()
            peer.send(raw.welcome(dead_after_ms=60_000))
            for n in range(64):
                peer.send(raw.batch(struct.pack("<Q", n), 20_000))
            with other.accept() as second:
                second.serve()
            for n in range(64):
                while (frames := peer.message())[0] != b"result":
                    pass
                assert frames[1] == struct.pack("<Q", n)
                assert frames[3] == raw.ROW * 20_000


def test_pings_are_answered_while_the_function_computes() -> None:
    held = Held()
    with Raw() as server, Container(held.model, servers=server.endpoint), server.accept() as peer:
        peer.handshake()
        peer.send(raw.welcome() + raw.batch())
        assert held.inside.wait(20)
        peer.send(raw.command(b"PING", b"\0\0here"))
        while (got := peer.frame()) != (4, b"\4PONGhere"):
            assert got == (0, b"heartbeat")
        held.leave.set()


def test_after_goodbye_the_last_answer_goes_out_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shiva_container.container.LINGER_SECONDS", 60.0)  # this reader may be slow
    held = Held()
    with Raw() as server, Container(held.model, servers=server.endpoint) as container, server.accept() as peer:
        peer.handshake()
        peer.send(raw.welcome(dead_after_ms=60_000) + raw.batch(rows=200_000) + raw.message(b"goodbye", b"{}"))
        assert held.inside.wait(20)
        peer.send(raw.message(b"heartbeat"))  # it stays unread if the container closes too soon
        held.leave.set()
        time.sleep(0.1)
        while (frames := peer.message())[0] != b"result":
            pass
        assert frames[3] == raw.ROW * 200_000
        assert peer.gone()
        peer.socket.close()
        assert container.wait(20)


def test_wrong_conversations_cost_their_connection_only() -> None:
    """A server's messages are mutated in order and structure; then a correct one is served."""
    rng = random.Random(time.time())
    units = [
        raw.GREETING,
        raw.ready(),
        raw.welcome(dead_after_ms=100, heartbeat_ms=50),
        raw.batch(),
        raw.command(b"PING", b"\0\0x"),
        raw.message(b"heartbeat"),
        raw.batch(b"another!", 3000),
        raw.message(b"goodbye", b'{"reconnect":true}'),
    ]
    with served() as server:
        until = time.monotonic() + 5
        while time.monotonic() < until:
            with server.accept() as peer:
                peer.socket.settimeout(0.05)
                _play(peer, raw.mutated(units, rng))
        for _ in range(100):
            with server.accept() as peer:
                try:
                    peer.serve()
                    return
                except (OSError, EOFError):  # a connection of an earlier round
                    continue
        pytest.fail("it did not come back")


def _play(peer: Peer, units: list[bytes]) -> None:
    try:
        for unit in units:
            peer.send(unit)
        peer.gone()
    except (OSError, EOFError):
        return

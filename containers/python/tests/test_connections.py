"""Containers and their servers: which ones, lost connections, refusals."""

from __future__ import annotations

import json
import socket
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from echo_model import ROW, Held, ask, echo
from fake_server import Fake, kept
from shiva_container import Container, link, poller
from shiva_container.arbiter import Arbiter
from shiva_container.connection import Connection
from shiva_container.container import hello


def test_several_models_and_several_servers() -> None:
    one, two = echo(name="one"), echo(name="two")
    with Fake() as a, Fake() as b, Container(one, two, servers=[a.endpoint, b.endpoint]) as container:
        for fake in (a, b):
            names = {fake.hello(n)[1]["model"] for n in (1, 2)}
            assert names == {"one", "two"}
            for n in (1, 2):
                assert "outputs" in fake.result(ask(fake, fake.hello(n)[0]))[0]
        assert container.wait_ready(20)


def test_ipc(tmp_path: Path) -> None:
    with Fake(f"ipc://{tmp_path}/s") as fake, Container(echo(), servers=fake.endpoint):
        peer, _ = fake.hello()
        assert "outputs" in fake.result(ask(fake, peer))[0]


def test_a_system_without_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "_poll", poller.Select)
    with Fake() as fake, Container(echo(), servers=["tcp://127.0.0.1:1", fake.endpoint]):
        peer, _ = fake.hello()
        for _ in range(20):
            assert fake.result(ask(fake, peer))[1] == [ROW]


def test_a_name_with_two_addresses_is_two_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    with Fake("tcp://127.0.0.1:*") as a:
        port = a.endpoint.rpartition(":")[2]
        found = [(socket.AF_INET, 1, 6, "", (host, int(port))) for host in ("127.0.0.1", "127.0.0.2")]
        with Fake(f"tcp://127.0.0.2:{port}") as b:
            monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, type: found)
            with Container(echo(), servers=f"shivad.example:{port}"):
                for fake in (a, b):
                    assert "outputs" in fake.result(ask(fake, fake.hello()[0]))[0]


def test_a_server_that_comes_late_and_is_restarted() -> None:
    endpoint = kept()
    with Container(echo(), servers=endpoint) as container:
        assert not container.wait_ready(0.3)
        for _ in range(2):
            with Fake(endpoint, heartbeat_ms=3_600_000, dead_after_ms=3_600_000) as fake:
                peer, _ = fake.hello()
                assert "outputs" in fake.result(ask(fake, peer))[0]
            until = time.monotonic() + 20
            while container.wait_ready(0) and time.monotonic() < until:
                time.sleep(0.005)
            assert not container.wait_ready(0), "the closed connection was not noticed"


def test_a_connection_that_ends_behind_many_messages_is_noticed() -> None:
    with Fake(heartbeat_ms=3_600_000, dead_after_ms=3_600_000) as fake, Container(echo(), servers=fake.endpoint) as c:
        peer, _ = fake.hello()
        assert c.wait_ready(20)
        for _ in range(100 * link._BURST):
            fake.send(peer, b"heartbeat")
        fake.close()
        until = time.monotonic() + 20
        while c.wait_ready(0) and time.monotonic() < until:
            time.sleep(0.005)
        assert not c.wait_ready(0)


def test_answers_do_not_reach_the_next_server_and_lost_batches_are_not_computed() -> None:
    held = Held()
    with Fake(kept()) as first, Container(held.model, servers=first.endpoint):
        for _ in range(2):
            ask(first, first.hello()[0])
        assert held.inside.wait(20)
        first.close()
        with Fake(first.endpoint) as second:
            peer, _ = second.hello()
            held.leave.set()
            batch_id = ask(second, peer)
            second.result(batch_id)
            assert [frames[1] for _, frames in second.seen(b"result")] == [batch_id]
    assert held.calls == 2, "the batch that was queued when the first server went had nobody to answer"


def test_a_silent_server_is_left(caplog: pytest.LogCaptureFixture) -> None:
    with Fake(beat=False, dead_after_ms=100, heartbeat_ms=30) as fake, Container(echo(), servers=fake.endpoint):
        fake.hello(3)
    assert "silent for 0.1 s" in caplog.text


def test_a_lock_taken_while_reading_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model may take the interpreter's lock at any read, and release it after the last."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(link, "time", SimpleNamespace(monotonic=lambda: clock.now))
    receive = Connection.receive

    def pause(connection: Connection) -> Any:
        messages = receive(connection)
        clock.now += 1.5 if messages and pausing else 0
        return messages

    monkeypatch.setattr(Connection, "receive", pause)
    pausing = False
    model = echo()
    with Fake(heartbeat_ms=3_600_000, dead_after_ms=1000, beat=False) as fake:
        arbiter = Arbiter(model, print, print)
        one = link.Link(model, fake.endpoint, partial(hello, model, "i"), arbiter, print, print, Connection.close)
        until = time.monotonic() + 20
        while not one.live and time.monotonic() < until:
            one.tick(clock.now)
            one.readable()
        session = one.session
        assert session is not None
        peer, _ = fake.hello()
        pausing = True
        fake.send(peer, b"heartbeat")
        while clock.now < 1.5 and time.monotonic() < until:
            one.readable()
        one.tick(clock.now)
        assert one.session is session, "what was read was dated to the time before the pause"
        one.close()


def test_refusal_is_reported_and_tried_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(link, "REFUSED_RETRY_SECONDS", 0.05)
    with Fake(refuse="expected FP32 [-1,2], got FP64") as fake, Container(echo(), servers=fake.endpoint) as container:
        fake.hello(3)
        assert not container.wait_ready(0)
    assert "registration refused: expected FP32 [-1,2], got FP64" in caplog.text


def test_after_a_refusal_the_next_try_is_far_away() -> None:
    with Fake(refuse="no") as fake, Container(echo(), servers=fake.endpoint) as container:
        fake.hello()
        until = time.monotonic() + 20
        while not (container._links and container._links[0].session is None) and time.monotonic() < until:
            time.sleep(0.005)
        assert container._links[0].wake() - time.monotonic() > link.REFUSED_RETRY_SECONDS / 3


def test_a_model_waits_for_its_place(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It stays connected, with heartbeats, and registers as soon as the server calls it."""
    monkeypatch.setattr(link, "REFUSED_RETRY_SECONDS", 3600)
    wait = json.dumps({"error": "stop the 1 that serve it", "heartbeat_ms": 20, "dead_after_ms": 20_000}).encode()
    with Fake(welcome=False) as fake, Container(echo(), servers=fake.endpoint) as container:
        for n in (1, 2):
            peer, head = fake.hello(n)
            assert head["waits"] is True
            fake.send(peer, b"wait", wait)
            fake.wait(lambda peer=peer: fake.seen(b"heartbeat").count((peer, [b"heartbeat"])) > 2, "heartbeats")
            assert not container.wait_ready(0)
            fake.goodbye(peer, reconnect=True, reason="there is a place now")
        peer, _ = fake.hello(3)
        fake.send(peer, b"welcome", json.dumps(fake._welcome).encode())
        assert container.wait_ready(20)
        assert "outputs" in fake.result(ask(fake, peer))[0]
    assert caplog.text.count("no place yet: stop the 1 that serve it") == 2


@pytest.mark.parametrize("leave", ["close", "drain", "goodbye"])
def test_a_wait_that_ends(leave: str) -> None:
    wait = json.dumps({"error": "taken", "heartbeat_ms": 20, "dead_after_ms": 20_000}).encode()
    with Fake(welcome=False) as fake, Container(echo(), servers=fake.endpoint) as container:
        peer, _ = fake.hello()
        fake.send(peer, b"wait", wait)
        fake.wait_for(b"heartbeat")
        if leave == "goodbye":
            fake.goodbye(peer, reconnect=False)
        elif leave == "drain":
            container.drain()
        if leave != "close":
            assert container.wait(20)


def test_a_server_that_is_lost_while_a_model_waits(caplog: pytest.LogCaptureFixture) -> None:
    endpoint = kept()
    wait = json.dumps({"error": "taken", "heartbeat_ms": 20, "dead_after_ms": 20_000}).encode()
    with Fake(endpoint, welcome=False) as fake, Container(echo(), servers=endpoint) as container:
        peer, _ = fake.hello()
        fake.send(peer, b"wait", wait)
        fake.wait_for(b"heartbeat")
        fake.close()
        with Fake(endpoint) as again:
            again.hello()
            assert container.wait_ready(20)
    assert "the connection was lost while the model waited" in caplog.text


def test_goodbye_with_reconnect() -> None:
    with Fake() as fake, Container(echo(), servers=fake.endpoint) as container:
        peer, head = fake.hello()
        assert head["again"] is False
        fake.goodbye(peer, reconnect=True)
        peer, head = fake.hello(2)
        assert head["again"] is True
        assert "outputs" in fake.result(ask(fake, peer))[0]
        assert not container.wait(0)


def test_a_goodbye_is_heard_although_the_connection_ends_with_it() -> None:
    models = [echo(name=f"m{n}") for n in range(10)]
    with Fake() as fake, Container(*models, servers=fake.endpoint) as container:
        for n in range(10):
            fake.hello(n + 1)
        assert container.wait_ready(20)
        for peer, _ in fake.seen(b"hello"):
            fake.goodbye(peer, reconnect=False)
        fake.close()
        assert container.wait(20), "a goodbye for good was taken for a lost connection"


def test_shows_its_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SHIVA_TOKEN", raising=False)
    file = tmp_path / "token"
    file.write_text("of-a-file\n")
    served = echo()
    for given, variable, path, shown in (
        (None, "", "", None),
        ("", "of-the-variable", "", None),
        (None, "of-the-variable", str(file), "of-the-variable"),
        (None, "", str(file), "of-a-file"),
        ("given", "of-the-variable", str(file), "given"),
    ):
        monkeypatch.setenv("SHIVA_TOKEN", variable)
        monkeypatch.setenv("SHIVA_TOKEN_FILE", path)
        with Fake() as fake, Container(served, servers=fake.endpoint, token=given):
            assert fake.hello()[1].get("token") == shown


def test_a_replaced_token_is_shown_by_the_next_registration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"\xef\xbb\xbffirst\r\n")  # as editors of Windows save it
    monkeypatch.delenv("SHIVA_TOKEN", raising=False)
    monkeypatch.setenv("SHIVA_TOKEN_FILE", str(file))
    with Fake() as fake, Container(echo(), servers=fake.endpoint):
        peer, head = fake.hello()
        assert head["token"] == "first"
        file.write_text("second")
        fake.goodbye(peer, reconnect=True)
        peer, head = fake.hello(2)
        assert head["token"] == "second"
        file.unlink()
        fake.goodbye(peer, reconnect=True)
        assert fake.hello(3)[1]["token"] == "second"


def test_a_token_that_was_replaced_when_it_was_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The new one is tried at once, and only once."""
    monkeypatch.setattr(link, "REFUSED_RETRY_SECONDS", 3600)
    file = tmp_path / "token"
    file.write_bytes(b"\xef\xbb\xbffirst\r\n")  # as editors of Windows save it
    monkeypatch.delenv("SHIVA_TOKEN", raising=False)
    monkeypatch.setenv("SHIVA_TOKEN_FILE", str(file))
    with Fake(welcome=False) as fake, Container(echo(), servers=fake.endpoint) as container:
        for n, token in enumerate(("first", "second"), 1):
            peer, head = fake.hello(n)
            assert head["token"] == token
            file.write_text("second")
            fake.send(peer, b"refused", json.dumps({"error": "unauthenticated"}).encode())
        until = time.monotonic() + 20
        while container._links[0].session is not None and time.monotonic() < until:
            time.sleep(0.005)
        assert container._links[0].wake() - time.monotonic() > 100

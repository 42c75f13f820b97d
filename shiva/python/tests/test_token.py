"""The first message of a connection identifies the client."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from conftest import Server
from shiva_client import AsyncClient, Client, ConnectionLost, Message, Unauthenticated

X = np.zeros(2, np.uint8)


def test_is_shown_first_on_each_connection(server: Server) -> None:
    with Client(server.address, token="t0p") as client:
        client.infer("m", X)
        client.infer("m", X)
        server.restart()
        with suppress(ConnectionLost):  # if the request was sent before the end was noticed
            client.infer("m", X)
        client.infer("m", X)
    shown = [(m.namespace, m.metadata.get("token")) for m in server.seen]
    assert shown[:3] == [("!whoami", "t0p"), ("m", None), ("m", None)]
    assert shown.count(("!whoami", "t0p")) == server.connections == 2


def test_asyncio(server: Server) -> None:
    async def ask() -> None:
        async with AsyncClient(server.address, token="t0p", shared_memory=1 << 20) as client:
            await client.infer("m", X)

    asyncio.run(ask())
    assert [m.metadata.get("token") for m in server.seen][:2] == ["t0p", None]


def test_is_of_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"\xef\xbb\xbfof-a-file\r\n")  # as editors of Windows save it
    monkeypatch.setenv("SHIVA_TOKEN_FILE", str(file))
    Client(server.address).infer("m", X)
    monkeypatch.setenv("SHIVA_TOKEN", "of-the-variable")
    Client(server.address).infer("m", X)
    Client(server.address, token="").infer("m", X)
    assert [m.metadata["token"] for m in server.seen if m.namespace == "!whoami"] == ["of-a-file", "of-the-variable"]
    monkeypatch.delenv("SHIVA_TOKEN")
    file.unlink()
    with pytest.raises(FileNotFoundError):
        Client(server.address)


def test_unknown_is_an_error_of_the_request(server: Server) -> None:
    refusal = Message("!error", {"type": "Unauthenticated", "message": "none of this server's", "code": 401})
    server.handler = lambda _: refusal
    with Client(server.address, token="t0p") as client, pytest.raises(Unauthenticated, match="none of this"):
        client.infer("m", X)


class Known:
    """A server that knows one token, which a file has at first, too."""

    def __init__(self, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.file = tmp_path / "token"
        self.file.write_text("first")
        self.token = self.shown = "first"
        monkeypatch.delenv("SHIVA_TOKEN", raising=False)
        monkeypatch.setenv("SHIVA_TOKEN_FILE", str(self.file))
        server.handler = self.answer

    def answer(self, message: Message) -> Message:
        if message.namespace == "!whoami":
            self.shown = message.metadata["token"]
        if self.shown != self.token:
            return Message("!error", {"type": "Unauthenticated", "message": "unknown", "code": 401})
        return message

    def change(self, token: str) -> None:
        self.token = token
        self.file.write_text(token)


@pytest.fixture
def known(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Known:
    return Known(server, monkeypatch, tmp_path)


def test_is_read_again_when_it_is_refused(server: Server, known: Known) -> None:
    with Client(server.address) as client:
        client.infer("m", X)
        known.change("second")
        client.infer("m", X)
        assert server.connections == 2
        known.token = "third"
        for _ in range(2):
            with pytest.raises(Unauthenticated):
                client.infer("m", X)
        assert server.connections == 2, "a connection was made for the token that was refused"
        known.file.write_text("wrong")
        with pytest.raises(Unauthenticated):
            client.infer("m", X)
        assert server.connections == 3
        known.change("third")
        client.infer("m", X)
    assert server.connections == 4


def test_is_read_again_by_asyncio(server: Server, known: Known) -> None:
    async def ask() -> None:
        async with AsyncClient(server.address) as client:
            await client.infer("m", X)
            known.change("second")
            await asyncio.gather(*(client.infer("m", X) for _ in range(5)))
            assert server.connections == 2
            known.token = "third"
            with pytest.raises(Unauthenticated):
                await client.infer("m", X)
            known.file.unlink()
            with pytest.raises(Unauthenticated):
                await client.infer("m", X)
            assert server.connections == 2

    asyncio.run(ask())


def test_those_in_flight_are_answered_before_another_is_shown(server: Server, known: Known) -> None:
    sent, seen = threading.Event(), threading.Event()
    asked = 0

    def handler(message: Message) -> Message:
        nonlocal asked
        asked += message.namespace == "m"
        if message.namespace == "m" and asked == 1:
            assert sent.wait(20)
        elif message.namespace == "m" and asked == 2:
            known.change("second")
        elif message.namespace == "m" and asked == 3:
            assert seen.wait(20)
        return known.answer(message)

    server.handler = handler
    with Client(server.address) as client:
        futures = [client.submit("m", X) for _ in range(3)]
        sent.set()
        futures[0].result(20)
        with pytest.raises(Unauthenticated):
            futures[1].result(20)
        seen.set()
        with pytest.raises(Unauthenticated):
            futures[2].result(20)
        client.submit("m", X).result(20)
    assert server.connections == 2

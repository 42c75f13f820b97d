"""A connection's first message shows who the client is."""

from __future__ import annotations

import asyncio
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
        with suppress(ConnectionLost):  # if the request was sent before the end was known
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
    file.write_text("of-a-file\n")
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

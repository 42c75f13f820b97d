"""What programs with the reference client, and newcomers with ours, do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import shiva_client
from conftest import Server, Start

import shiva

Ask = Callable[..., Awaitable[Any]]


@pytest.fixture(scope="module", autouse=True)
def models(server: Server, start: Start) -> None:
    start("reference_models.py")
    server.wait_ready("describe/1", "detect/1", "switch-format/1", "inspect/1", "rounded/1")


def talk(server: Server, talk: Callable[[Ask], Awaitable[None]]) -> None:
    async def connected() -> None:
        host, _, port = server.tcp.rpartition(":")
        client = await shiva.ShivaClientAsync.create_and_connect(host, int(port))
        try:
            await talk(lambda **message: client.send_message(shiva.ShivaMessage(**message), timeout=60))
        finally:
            await client.disconnect()

    asyncio.run(connected())


def test_requests_without_tensors(server: Server) -> None:
    async def cell(ask: Ask) -> None:
        assert (await ask(namespace="describe")).tensors[0].tolist() == [7]
        assert [(await ask(namespace="detect")).tensors[0].shape for _ in range(2)] == [(0, 26), (3, 26)]
        unknown = await ask(namespace="nobody")
        assert (unknown.namespace, unknown.tensors, unknown.metadata["type"]) == ("!error", [], "NotFound")
        ident = "5d0c1a2b3c4d5e6f70819203"
        switched = await ask(namespace="switch-format", metadata={"id": ident})
        assert switched.metadata["id"] == ident
        assert ident in str(switched.metadata["__texts__"])

    talk(server, cell)


def test_an_answer_is_the_next_request(server: Server) -> None:
    async def loop(ask: Ask) -> None:
        left, right = np.random.default_rng(0).integers(0, 256, (2, 24, 32, 3), np.uint8)
        metadata = {"__tensors__": ["left", "right", "counter"], "time": 12.5, "tag": {"a": [1, None]}, "id": "x"}
        message = shiva.ShivaMessage(namespace="inspect", tensors=[left, right, np.array([0])], metadata=metadata)
        for i in range(300):
            message = await ask(namespace=message.namespace, tensors=message.tensors, metadata=message.metadata)
            assert message.namespace == "inspect", message.metadata
            assert message.tensors[2].tolist() == [i + 1]
        assert (message.tensors[0] == left).all() and (message.tensors[1] == right).all()
        assert {key: message.metadata[key] for key in metadata} == metadata

    talk(server, loop)


def test_a_picture_divided_by_255(server: Server) -> None:
    picture = np.array([[7, 255]], np.uint8) / 255
    with shiva_client.Client(server.tcp) as client:
        assert (client.infer("rounded", picture)["y"] == picture.astype(np.float32)).all()
        with pytest.raises(shiva_client.ShivaError, match=r'float64.*astype\("uint8"\)'):
            client.infer("inspect", {"left": np.ones((1, 2, 3)) / 255, "right": np.zeros((1, 1, 3), np.uint8), "counter": [1]})

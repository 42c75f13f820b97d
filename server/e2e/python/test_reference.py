"""What programs with the reference client, and newcomers with ours, do."""

from __future__ import annotations

import asyncio
import json
import queue
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shiva_client
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from conftest import HERE, Server, Start

import shiva

Ask = Callable[..., Awaitable[Any]]


@pytest.fixture(scope="module", autouse=True)
def models(server: Server, start: Start) -> None:
    start("reference_models.py")
    server.wait_ready("describe/1", "detect/1", "switch-format/1", "level/1", "inspect/1", "rounded/1", "cells/1")


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


def test_a_bridge_without_tensors(server: Server) -> None:
    """A bridge finds its fields in the answer of a model without inputs, whatever it sends."""

    class Nothing(shiva.ShivaBridge):
        pass

    class Tank(shiva.ShivaBridge):
        tank: str
        mm: np.ndarray | None = None

    async def cell(ask: Ask) -> None:
        for question, tank in (Nothing(), "north"), (Tank(tank="southwest"), "southwest"):
            message = question.to_shiva_message("level")
            answer = Tank.from_shiva_message(await ask(namespace="level", metadata=message.metadata))
            assert (answer.tank, answer.mm.tolist()) == (tank, [len(tank), 1])

    talk(server, cell)


def test_models_without_inputs_through_our_clients(server: Server) -> None:
    with shiva_client.Client(server.tcp) as client, shiva_client.Client(server.unix, shared_memory=1 << 20) as near:
        for one in client, near, near:
            for given in (), ({},):
                answer = one.infer("level", *given, parameters={"tank": "a"})
                assert (answer["mm"].shape, answer["mm"][0], answer["tank"].tolist()) == ((2,), 1, "a")
        with pytest.raises(shiva_client.ShivaError, match="takes no tensors, got 1"):
            client.infer("level", np.zeros(2, np.float32))
        with client.stream("level", "sensor") as stream:
            stream.push(())
            assert next(iter(stream)).answer["tank"].tolist() == "north"

    async def many() -> None:
        async with shiva_client.AsyncClient(server.tcp) as client:
            tanks = ["x" * (1 + i % 7) for i in range(200)]
            answers = await asyncio.gather(*(client.infer("level", parameters={"tank": tank}) for tank in tanks))
            assert [(a["tank"].tolist(), a["mm"][0]) for a in answers] == [(tank, len(tank)) for tank in tanks]
            assert max(a["mm"][1] for a in answers) > 1, "requests form batches"

    asyncio.run(many())


def test_models_without_inputs_through_stock_clients(server: Server) -> None:
    with triton_http.InferenceServerClient(server.rest) as web:
        assert web.get_model_metadata("level")["inputs"] == []
        assert web.get_model_config("level")["input"] == []
        answer = web.infer("level", [], parameters={"tank": "ab"})
        assert (answer.as_numpy("mm")[0], answer.as_numpy("tank").tolist()) == (2, b"ab")
        with pytest.raises(triton_http.InferenceServerException, match='no input "x"; model "level" takes no inputs'):
            web.infer("level", [triton_http.InferInput("x", [1], "FP32").set_data_from_numpy(np.zeros(1, "f4"))])
    with triton_grpc.InferenceServerClient(server.grpc) as rpc:
        assert len(rpc.get_model_metadata("level").inputs) == 0
        assert rpc.infer("level", [], parameters={"tank": "ab"}).as_numpy("mm")[0] == 2
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        rpc.start_stream(lambda result, error: answers.put((result, error)))
        rpc.async_stream_infer("level", [], parameters={"tank": "abc"})
        result, error = answers.get(timeout=60)
        assert error is None
        assert result.as_numpy("mm")[0] == 3
        rpc.stop_stream()


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


def show(server: Server, *parts: int) -> None:
    """A camera that shows pictures with so many parts."""
    with shiva_client.Client(server.tcp) as client, client.stream("cells", "belt-3", keep="all") as stream:
        for n in parts:
            stream.push(np.full((2, 2, 3), n, np.uint8))
            assert len(next(iter(stream)).answer["found"]) == n


def test_the_example_clients_of_the_reference(server: Server) -> None:
    """They ask three constant namespaces, which are routes to what the camera saw last."""

    async def example(ask: Ask) -> None:
        for n in 0, 3, 1:
            await asyncio.to_thread(show, server, n)
            info = await ask(namespace="info")
            assert {"model_name", "model_version", "seq", "age_ms"} <= info.metadata.keys()
            found = await ask(namespace="inference")
            cells = found.tensors[0]
            assert (found.namespace, cells.shape, cells.dtype) == ("inference", (n, 26), np.float32)
            assert found.tensors[0].ravel().tolist() == list(range(26 * n))
            bad = await ask(namespace="BAD")
            assert (bad.namespace, bad.tensors, bad.metadata["type"]) == ("!error", [], "NotFound")
            ident = "655ca7a6275359a19a9516d9"
            changed = await ask(namespace="change-format", metadata={"id": ident})
            assert (changed.namespace, changed.metadata["id"]) == ("change-format", ident)

    talk(server, example)


def test_the_example_client_in_cpp(server: Server, tmp_path: Path) -> None:
    """It sends pictures and its last answer, and reads fields that must not come in pieces."""
    program = tmp_path / "client"
    subprocess.run(["c++", "-std=c++17", "-O1", "-o", program, HERE / "example_client.cpp"], check=True)
    show(server, 2)
    host, _, port = server.tcp.rpartition(":")
    ran = subprocess.run([program, host, port, "50"], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, len(ran.stdout.splitlines())) == (0, 50), ran.stdout[-500:]
    for line in ran.stdout.splitlines():
        name, tensors, metadata = line.split(" ", 2)
        assert (name, tensors) == ("inference", "1")
        assert json.loads(metadata)["counter"] == 0


def test_a_picture_divided_by_255(server: Server) -> None:
    picture = np.array([[7, 255]], np.uint8) / 255
    with shiva_client.Client(server.tcp) as client:
        assert (client.infer("rounded", picture)["y"] == picture.astype(np.float32)).all()
        with pytest.raises(shiva_client.ShivaError, match=r'float64.*astype\("uint8"\)'):
            client.infer(
                "inspect", {"left": np.ones((1, 2, 3)) / 255, "right": np.zeros((1, 1, 3), np.uint8), "counter": [1]}
            )

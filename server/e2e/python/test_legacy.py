"""Containers of every generation of Clipper's RPC behind a running shivad, over real sockets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import Server, Start, expect_error
from wire_client import Client, Message

DTYPES = {"bytes": "u1", "ints": "i4", "floats": "f4", "doubles": "f8"}
GENERATIONS = ["v1", "v1b", "v2", "v2a", "v3"]
TEXTS = {"v2", "v3"}
"""The generations that answer with texts; the others answer with float32."""


@pytest.fixture(scope="module", autouse=True)
def containers(server: Server, start: Start) -> None:
    for rpc in GENERATIONS:
        start("legacy_container.py", rpc, server.address(rpc), rpc, "1", *DTYPES, "strings")
    server.wait_ready(*(f"{rpc}_{kind}/1" for rpc in GENERATIONS for kind in [*DTYPES, "strings"]))


def flat(answer: Any) -> list[list[float]]:
    return [tensor.reshape(-1).tolist() for tensor in answer.tensors]


@pytest.mark.parametrize("rpc", GENERATIONS)
@pytest.mark.parametrize("kind", DTYPES)
def test_sums(client: Client, rpc: str, kind: str) -> None:
    answer = client.ask(f"{rpc}_{kind}", np.array([[1, 2], [3, 4]], DTYPES[kind]), id=1)
    assert answer.namespace == f"{rpc}_{kind}", answer.metadata
    assert answer.metadata["output"] == 10.0
    assert answer.metadata["id"] == 1
    assert flat(answer) == [[10.0]]
    assert answer.tensors[0].dtype == ("f8" if rpc in TEXTS else "f4")


@pytest.mark.parametrize("rpc", GENERATIONS)
def test_batches(client: Client, rpc: str) -> None:
    answer = client.ask(f"{rpc}_doubles", np.array([[1, 2], [3, 4], [5.5, 6]]), batch=True)
    assert answer.metadata["outputs"] == [3.0, 7.0, 11.5], answer.metadata
    for i in range(100):  # rows of different lengths in one batch
        client.send(Message(f"{rpc}_doubles", {"id": i}, [np.arange(i + 1, dtype="f8")]))
    for i in range(100):
        answer = client.receive()
        assert (answer.metadata["id"], answer.metadata["output"]) == (i, i * (i + 1) / 2)


@pytest.mark.parametrize("rpc", GENERATIONS)
def test_strings(client: Client, rpc: str) -> None:
    answer = client.ask(f"{rpc}_strings", inputs=["abc", "grüß", ""])
    assert answer.metadata["outputs"] == (["cba", "ßürg", ""] if rpc in TEXTS else [3, 6, 0]), answer.metadata
    answer = client.ask(f"{rpc}_strings", np.frombuffer("grün".encode(), "u1"))
    assert answer.metadata["output"] == ("nürg" if rpc in TEXTS else 5), answer.metadata


@pytest.mark.parametrize("rpc", sorted(TEXTS))
def test_a_text_that_is_json(client: Client, rpc: str) -> None:
    answer = client.ask(f"{rpc}_strings", inputs=["[]"])
    assert answer.metadata["outputs"] == [[1, 2.5]]
    assert flat(answer) == [[1, 2.5]]


@pytest.mark.parametrize("rpc", GENERATIONS)
def test_wrong_dtype(client: Client, rpc: str) -> None:
    expect_error(client.ask(f"{rpc}_doubles", np.zeros(2, "f4")), "InvalidInput", 400, False, "float64", "float32")


@pytest.mark.parametrize("rpc", ["v1", "v2"])
def test_what_a_generation_cannot_say_fails_alone(client: Client, rpc: str) -> None:
    for text in ["a", "b\0c", "d"]:
        client.send(Message(f"{rpc}_strings", {"inputs": text}))
    assert client.receive().metadata["output"] == ("a" if rpc in TEXTS else 1)
    expect_error(client.receive(), "InvalidInput", 400, False, "NUL")
    assert client.receive().metadata["output"] == ("d" if rpc in TEXTS else 1)


def test_v3_sends_nul_and_empty_vectors(client: Client) -> None:
    assert client.ask("v3_strings", inputs="b\0c").metadata["output"] == "c\0b"
    assert client.ask("v3_doubles", np.zeros(0)).metadata["output"] == 0


@pytest.mark.parametrize("rpc", ["v2", "v3"])
def test_a_container_that_dies_on_a_batch(server: Server, client: Client, start: Start, rpc: str) -> None:
    process = start("legacy_container.py", rpc, server.address(rpc), f"{rpc}_dies", "1", "strings")
    server.wait_ready(f"{rpc}_dies/1")
    client.send(Message(f"{rpc}_dies", {"inputs": ["crash"]}))
    assert process.wait() == 1
    answer = client.receive()
    assert answer.namespace == "!error"
    assert answer.metadata["type"] in ("ContainerLost", "Unavailable"), answer.metadata

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from conftest import Server
from shiva_client import Client, Message, NotAnswered
from shiva_client.shared import DATATYPES, Memory

MIB = 1 << 20


class Shares:
    """What a server does with shared memory: it opens what is registered, and answers with what it finds there."""

    def __init__(self) -> None:
        self.files: dict[str, int] = {}
        self.placed = 0

    def __call__(self, message: Message) -> Message:
        steps = message.namespace.split("/")
        if steps[:2] == ["v2", "systemsharedmemory"]:
            if steps[-1] == "register":
                self.files[steps[3]] = os.open("/dev/shm" + message.metadata["key"], os.O_RDONLY)
            else:
                os.close(self.files.pop(steps[3]))
            return Message(message.namespace, {"name": steps[3]})
        if steps[:2] == ["v2", "models"]:
            return Message(message.namespace, {"inputs": [{"name": "x"}]})
        arrays: dict[str, Any] = dict(
            zip(message.metadata.get("__tensors__", ["x"]), message.tensors, strict=False)
        )
        dtypes = {name: dtype for dtype, name in DATATYPES.items()}
        for one in message.metadata.get("shared_memory", {}).get("inputs", []):
            self.placed += 1
            data = os.pread(self.files[one["region"]], one["byte_size"], one["offset"])
            arrays[one["name"]] = np.frombuffer(data, dtypes[one["datatype"]]).reshape(one["shape"])
        return Message(message.namespace, {"__tensors__": list(arrays)}, list(arrays.values()))


@pytest.fixture
def shares(server: Server) -> Shares:
    server.handler = Shares()
    return server.handler


@pytest.mark.parametrize("dtype", ["u1", "i2", "<f4", ">f4", "f8", "?"])
def test_large_inputs_are_left_there(server: Server, shares: Shares, dtype: str) -> None:
    large = (np.arange(MIB) % 2).astype(dtype).reshape(2, -1)
    with Client(server.address, shared_memory=16 * MIB) as client:
        for given in (large, large[:, ::2], {"x": large, "small": np.ones(3, np.float32), "text": "hello"}):
            answer = client.infer("m", given)
            want = given["x"] if isinstance(given, dict) else given
            assert np.array_equal(answer["x"], want)
        assert answer["small"].tolist() == [1, 1, 1]
        assert shares.placed == 3
        assert client.infer("m", np.ones(3)).tensors[0].tolist() == [1, 1, 1]
        assert shares.placed == 3
        assert not [name for name in os.listdir("/dev/shm") if name.startswith(f"shiva-{os.getpid()}-")]


def test_what_does_not_fit_is_sent(server: Server, shares: Shares) -> None:
    arrays = [np.full(MIB, i, np.uint8) for i in range(40)]
    with Client(server.address, shared_memory=3 * MIB) as client:
        for i, answer in enumerate([client.submit("m", array) for array in arrays]):
            assert (answer.result()["x"] == i).all()
        placed = shares.placed
        assert 3 <= placed <= 40
        for array in arrays:  # each has its part back
            client.infer("m", array)
        assert shares.placed == placed + 40


def test_refused(server: Server) -> None:
    def refuses(message: Message) -> Message:
        if message.namespace.startswith("v2/"):
            return Message("!error", {"type": "NotFound", "message": "shared memory is not offered", "code": 404})
        return message

    server.handler = refuses
    with Client(server.address, shared_memory=MIB) as client:
        with pytest.warns(RuntimeWarning, match="shared memory is not offered"):
            answer = client.infer("m", np.ones(MIB // 8))
        assert answer.tensors[0].sum() == MIB // 8


def test_a_lost_connection_has_new_memory(server: Server, shares: Shares) -> None:
    with Client(server.address, shared_memory=2 * MIB) as client:
        array = np.ones(MIB, np.uint8)
        client.infer("m", array)
        server.restart()
        for _ in range(50):
            try:
                assert (client.infer("m", array)["x"] == 1).all()
                break
            except NotAnswered:  # of the connection that is lost
                continue
        assert len(shares.files) == 2


def test_parts() -> None:
    memory = Memory(1024)
    memory.unlink()
    taken = [memory._take(n) for n in (100, 1, 500)]
    assert taken == [(0, 128), (128, 64), (192, 512)]
    assert memory._take(512) is None
    memory.give_back([taken[1]])
    memory.give_back([taken[0]])
    assert memory._take(192) == (0, 192)
    memory.give_back([(0, 192), (192, 512)])
    assert memory._free == [(0, 1024)]

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import Server
from shiva_client import AsyncClient, Client, Message, NotAnswered, NotFound, ProtocolError
from shiva_client.shared import DATATYPES, DTYPES, Memory, Parts

MIB = 1 << 20


class Shares:
    """A server's part of shared memory: opens registered regions, and answers with their contents.

    Its answers have a small output before the others, and where there is an area the first large
    one is left there.
    """

    def __init__(self) -> None:
        self.files: dict[str, int] = {}
        self.placed = self.left = 0
        self.lie: Callable[[dict[str, Any]], None] = lambda one: None

    def __call__(self, message: Message) -> Message:
        steps = message.namespace.split("/")
        if steps[:2] == ["v2", "systemsharedmemory"]:
            if steps[-1] == "register":
                assert message.metadata["connection"] is True
                self.files[steps[3]] = os.open("/dev/shm" + message.metadata["key"], os.O_RDWR)
            return Message(message.namespace, {"name": steps[3]})
        if steps[:2] == ["v2", "models"]:
            return Message(message.namespace, {"inputs": [{"name": "x"}, {"name": "x_regions", "optional": True}]})
        arrays: dict[str, Any] = dict(
            zip(message.metadata.get("__tensors__", ["x"]), message.tensors, strict=False)
        )
        for one in message.metadata.get("shared_memory", {}).get("inputs", []):
            self.placed += 1
            data = os.pread(self.files[one["region"]], one["byte_size"], one["offset"])
            arrays[one["name"]] = np.frombuffer(data, DTYPES[one["datatype"]]).reshape(one["shape"])
        if message.namespace == "two":
            arrays = {"first": np.ones(2, np.float32)} | arrays
        metadata: dict[str, Any] = {"id": 7}
        area = message.metadata.get("shared_memory", {}).get("area")
        for i, (name, array) in enumerate(list(arrays.items())):
            if area and 64 << 10 <= array.nbytes <= area["byte_size"]:
                os.pwrite(self.files[area["region"]], array.tobytes(), area["offset"])
                one = {"name": name, "datatype": DATATYPES[array.dtype.newbyteorder("=")], "shape": list(array.shape),
                       "region": area["region"], "offset": area["offset"], "byte_size": array.nbytes}  # fmt: skip
                one |= {"index": i} if i else {}
                self.lie(one)
                metadata["shared_memory"] = {"outputs": [one]}
                self.left += 1
                del arrays[name]
                break
        return Message(message.namespace, metadata | {"__tensors__": list(arrays)}, list(arrays.values()))


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
            except NotAnswered:  # from the lost connection
                continue
        assert len(shares.files) == 2


def test_parts() -> None:
    memory = Memory(1024)
    memory.unlink()
    taken = [memory._take(n, "x") for n in (100, 1, 500)]
    assert taken == [(0, 128), (128, 64), (192, 512)]
    assert memory._take(512, "x") is None
    memory.give_back(Parts([(128, 64)], (0, 128)))
    assert memory._take(192, "x") == (0, 192)
    memory.give_back(Parts([(0, 192), (192, 512)], None))
    assert memory._free == [(0, 1024)]


def test_outputs_are_views(server: Server, shares: Shares) -> None:
    """Arrays outlive the client, and their parts are free once they are no longer referenced."""
    arrays = [np.full((2, MIB // 16), i, np.float64) for i in range(8)]
    with Client(server.address, shared_memory=6 * MIB) as client:
        answers = [client.infer("two", array) for array in arrays]
        assert shares.left == 5  # the input takes one part; outputs without room are sent
        for answer, array in zip(answers, arrays, strict=True):
            assert answer["x"].dtype == np.float64
            assert np.array_equal(answer["x"], array)
            assert list(answer) == ["first", "x"]
            assert answer.tensors[1] is answer["x"]
            assert "shared_memory" not in answer.metadata
            assert answer.metadata["id"] == 7
            answer["x"][0, 0] = 8  # the caller may write to it
        held = answers[1]["x"][1:, ::2].T
        del answers, answer
        left = shares.left
        for array in arrays * 2:
            client.infer("two", array)
        assert shares.left == left + 16
    assert (held == 1).all()


@pytest.mark.parametrize("dtype", sorted(DATATYPES, key=str), ids=str)
def test_every_datatype_comes_back(server: Server, shares: Shares, dtype: np.dtype[Any]) -> None:
    array = (np.arange(MIB) % 2).astype(dtype)
    with Client(server.address, shared_memory=64 * MIB) as client:
        for _ in range(2):
            answer = client.infer("m", array)["x"]
            assert answer.dtype == dtype
            assert np.array_equal(answer, array)
    assert (shares.placed, shares.left) == (2, 1)


LIES: list[dict[str, Any]] = [
    {"region": "other"}, {"offset": -64}, {"offset": 1}, {"offset": 1 << 62}, {"byte_size": 0}, {"byte_size": 1 << 62},
    {"shape": [3]}, {"shape": "x"}, {"datatype": "BYTES"}, {"index": 2}, {"index": -1}, {"index": None},
]  # fmt: skip


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_lies_cost_their_answer(server: Server, shares: Shares, lie: dict[str, Any]) -> None:
    array = np.ones(MIB, np.uint8)
    with Client(server.address, shared_memory=3 * MIB) as client:
        client.infer("m", array)
        shares.lie = lambda one: one.update(lie)
        with pytest.raises(ProtocolError, match="shared memory of an answer"):
            client.infer("m", array)
        shares.lie = lambda one: None
        for _ in range(3):
            assert (client.infer("m", array)["x"] == 1).all()
    assert shares.left == 4
    assert server.connections == 1


def test_what_is_larger_than_all_is_sent(server: Server, shares: Shares) -> None:
    with Client(server.address, shared_memory=MIB) as client:
        expected = f"input 'x' has {2 * MIB} bytes and is sent over the connection: shared_memory is {MIB}"
        with pytest.warns(RuntimeWarning, match=expected):
            client.infer("m", np.ones(2 * MIB, np.uint8))
        with pytest.warns(RuntimeWarning) as both:
            client.infer("m", np.ones(2 * MIB, np.uint8))
        assert f"the output of 'm' has {2 * MIB} bytes and is sent" in str(both[-1].message)


class Forgets:
    """Refuses every request in memory, as a server does that has lost it, and counts the others."""

    def __init__(self, shares: Shares, **code: Any) -> None:
        self.shares, self.code = shares, code
        self.refused = self.executed = 0
        self.timeouts: list[float] = []

    def __call__(self, message: Message) -> Message:
        if message.metadata.get("shared_memory"):
            self.refused += 1
            return Message("!error", {"type": "NotFound", "message": "it is off", "code": 404, **self.code})
        if message.namespace == "m":
            self.executed += 1
            self.timeouts.append(message.metadata.get("timeout_ms", 0))
        return self.shares(message)


@pytest.mark.parametrize("repeatable", [False, True])
def test_a_region_that_is_lost(server: Server, shares: Shares, repeatable: bool) -> None:
    """Requests in memory that the server lost are sent again, once; later ones are sent at once."""
    with Client(server.address, shared_memory=16 * MIB, repeatable=repeatable) as client:
        client.infer("m", np.ones(MIB, np.uint8))
        server.handler = forgets = Forgets(shares, shared_memory=False)
        array, small, futures = np.empty(MIB, np.uint8), np.empty(3, np.uint8), []
        for i in range(8):
            array[:] = small[:] = i
            futures.append(client.submit("m", {"x": array, "small": small, "text": f"{i}"}, timeout=30))
        array[:] = small[:] = 99  # they may be used again
        for i, future in enumerate(futures):
            answer = future.result()
            assert (answer["x"] == i).all()
            assert (answer["small"] == i).all()
        assert forgets.executed == 8
        assert 1 <= forgets.refused <= 8
        assert min(forgets.timeouts) < 30_000
        refused = forgets.refused
        assert client.infer("m", np.ones(MIB, np.uint8))["x"].sum() == MIB
        assert (forgets.executed, forgets.refused) == (9, refused)
        assert client._links[next(iter(client._links))]._slots._value == 128


def test_another_error_is_raised(server: Server, shares: Shares) -> None:
    """Only what the server says by the key is sent again, whatever the words."""
    with Client(server.address, shared_memory=4 * MIB) as client:
        client.infer("m", np.ones(MIB, np.uint8))
        server.handler = forgets = Forgets(shares)
        for _ in range(2):
            with pytest.raises(NotFound, match="it is off"):
                client.infer("m", np.ones(MIB, np.uint8))
        assert (forgets.executed, forgets.refused) == (0, 2)


def test_asyncio_region_that_is_lost(server: Server, shares: Shares) -> None:
    async def run() -> None:
        async with AsyncClient(server.address, shared_memory=16 * MIB) as client:
            await client.infer("m", np.ones(MIB, np.uint8))
            server.handler = forgets = Forgets(shares, shared_memory=False)
            array, futures = np.empty(MIB, np.uint8), []
            for i in range(8):
                array[:] = i
                futures.append(await client.submit("m", array))
            array[:] = 99
            for i, answer in enumerate(await asyncio.gather(*futures)):
                assert (answer["x"] == i).all()
            assert forgets.executed == 8
            assert forgets.refused >= 1

    asyncio.run(run())


def test_frames_in_a_lost_region(server: Server, shares: Shares) -> None:
    """A frame is not sent again; the next ones are sent."""
    with Client(server.address, shared_memory=8 * MIB) as client, client.stream("m", "cam", keep="all") as stream:
        stream.push(np.ones(MIB, np.uint8))
        assert stream.take()
        server.handler = Forgets(shares, shared_memory=False)
        stream.push(np.ones(MIB, np.uint8))
        lost = stream.take()
        assert lost
        with pytest.raises(NotFound):
            _ = lost.answer
        stream.push(np.ones(MIB, np.uint8))
        found = stream.take()
        assert found
        assert found.answer["x"].sum() == MIB


def test_threads(server: Server, shares: Shares) -> None:
    failures: list[BaseException] = []
    with Client(server.address, shared_memory=8 * MIB) as client:

        def ask(n: int) -> None:
            try:
                for i in range(40):
                    value = 40 * n + i
                    assert (client.infer("two", np.full(MIB, value % 251, np.uint8))["x"] == value % 251).all()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    assert shares.left > 40


def test_asyncio(server: Server, shares: Shares) -> None:
    async def run() -> None:
        async with AsyncClient(server.address, shared_memory=16 * MIB) as client:
            for i in range(4):
                answer = await client.infer("two", np.full(MIB, i, np.uint8))
                assert (answer["x"] == i).all()
            assert (shares.placed, shares.left) == (4, 3)
            futures = [await client.submit("two", {"x": np.full(MIB, i, np.uint8)}) for i in range(40)]
            for i, answer in enumerate(await asyncio.gather(*futures)):
                assert (answer["x"] == i).all()
            stream = client.stream("m", "cam", keep="all")
            async with stream:
                for i in range(5):
                    await stream.push(np.full(MIB, i, np.uint8))
                    result = await stream.take()
                    assert result
                    assert (result.answer["x"] == i).all()
            assert len(shares.files) == 2

    asyncio.run(run())
    assert shares.left > 40 // 3


def test_asyncio_refused(server: Server) -> None:
    def refuses(message: Message) -> Message:
        if message.namespace.startswith("v2/"):
            return Message("!error", {"type": "NotFound", "message": "shared memory is not offered", "code": 404})
        return message

    async def run() -> None:
        async with AsyncClient(server.address, shared_memory=MIB) as client:
            assert (await client.infer("m", np.ones(MIB // 8))).tensors[0].sum() == MIB // 8

    server.handler = refuses
    with pytest.warns(RuntimeWarning, match="shared memory is not offered"):
        asyncio.run(run())


def test_stream(server: Server, shares: Shares) -> None:
    with Client(server.address, shared_memory=8 * MIB) as client:
        with client.stream("m", "cam", keep="all") as stream:
            for i in range(5):
                stream.push(np.full(MIB, i, np.uint8))
                result = stream.take()
                assert result
                assert (result.answer["x"] == i).all()
    assert (shares.placed, shares.left) == (5, 4)

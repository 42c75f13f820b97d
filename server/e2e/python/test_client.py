"""The client of shiva/python with a real shivad, and with the reference server."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import sdk_models
import shiva_client
from conftest import Server, Start, wait
from shiva_client import AsyncClient, Client
from shiva_client.shared import DATATYPES, Part
from test_e2e import bits, same_bits

import shiva


@pytest.fixture(scope="module", autouse=True)
def sdk(server: Server, start: Start) -> None:
    start("sdk_models.py")
    server.wait_ready(
        *(f"echo_{name.lower()}/1" for name in sdk_models.ECHOED), "rows/1", "shout/1", "slow/1", "fails/1"
    )


@pytest.fixture(params=["tcp", "unix"])
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[Client]:
    with Client(getattr(server, request.param)) as client:
        yield client


@pytest.mark.parametrize("name", sdk_models.ECHOED)
def test_every_dtype(client: Client, name: str) -> None:
    sent = bits(name, (3, 5))
    answer = client.infer(f"echo_{name.lower()}", {"x": sent}, id=7)
    assert same_bits(answer["x"], sent)
    assert answer.metadata["id"] == 7


def test_texts_and_parameters(client: Client) -> None:
    answer = client.infer("shout", {"text": ["abc", "grün"]}, parameters={"mark": "!"})
    assert answer["loud"].tolist() == ["ABC!", "GRÜN!"]


@pytest.mark.parametrize("name", [name for name in sdk_models.ECHOED if name in DATATYPES.values()])
@pytest.mark.filterwarnings("error")  # as where the server refuses
def test_shared_memory(server: Server, name: str) -> None:
    sent = bits(name, (64, 4096))
    with Client(server.tcp, shared_memory=16 << 20) as client:
        for i, given in enumerate((sent, {"x": sent}, sent)):
            out = client.infer(f"echo_{name.lower()}", given)["x"]
            assert same_bits(out, sent)
            # Where outputs go is known from the second request on; one that was sent has memory of
            # its own.
            assert isinstance(out.base.base, Part) is (i > 0)


@pytest.mark.filterwarnings("error")
def test_shared_memory_for_asyncio(server: Server) -> None:
    async def run() -> None:
        async with AsyncClient(server.tcp, shared_memory=16 << 20) as client:
            for i in range(3):
                sent = np.full((64, 4096), i)
                out = (await client.infer("echo_int64", sent))["x"]
                assert same_bits(out, sent)
                assert isinstance(out.base.base, Part) is (i > 0)

    asyncio.run(run())


def test_threads_share_a_connection(client: Client) -> None:
    def ask(n: int) -> None:
        for i in range(100):
            assert client.infer("echo_int64", np.full((1, 2), 1000 * n + i)).tensors[0].tolist() == [[1000 * n + i] * 2]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))


def test_asyncio(server: Server) -> None:
    async def run() -> None:
        async with AsyncClient(server.tcp) as client:
            answers = await asyncio.gather(*(client.infer("echo_int64", np.full((1, 2), i)) for i in range(300)))
            assert [int(a["x"][0, 0]) for a in answers] == list(range(300))

    asyncio.run(run())


def test_errors(client: Client) -> None:
    with pytest.raises(shiva_client.NotFound, match="echo_fp32") as found:
        client.infer("echo_fp23", [1])
    assert (found.value.code, found.value.retryable) == (404, False)
    with pytest.raises(shiva_client.InvalidInput, match="float32"):
        client.infer("rows", np.zeros((1, 2)))
    with pytest.raises(shiva_client.ContainerFailed, match="no such luck"):
        client.infer("fails", np.zeros(2, "f4"))
    with pytest.raises(shiva_client.DeadlineExceeded) as late:
        client.infer("slow", np.array([1, 0], "f4"), timeout=0.1)
    assert (late.value.code, late.value.retryable) == (504, True)
    with pytest.raises(shiva_client.InvalidInput, match="keep"):
        client.infer("rows", np.zeros(2, "f4"), stream="cam", keep="newest")


def frames(count: int, taken: list[float] | None = None) -> Iterator[np.ndarray]:
    """A camera of 100 frames a second, for a model that does 20, and the times of its frames."""
    for i in range(count):
        if taken is not None:
            taken.append(time.time())
        yield np.array([0.05, i], "f4")
        time.sleep(0.01)


def test_a_stream_shows_the_newest_frame(client: Client) -> None:
    with client.stream("slow", "newest", keep="latest") as stream:
        results, taken = [], []
        for r in stream.watch(frames(60, taken)):
            assert 0.04 < r.age <= time.time() - taken[r.seq]
            results.append(r)
    seqs = [r.seq for r in results]
    assert seqs == sorted(set(seqs))
    assert seqs[-1] == 59, "the last frame is executed"
    assert [round(float(r.answer.tensors[0]) - 0.05) for r in results] == seqs
    assert stream.superseded > 0
    assert len(results) + stream.superseded + stream.dropped == 60
    if not stream.dropped:
        assert sum(r.skipped for r in results) == stream.superseded


def test_a_stream_with_asyncio(server: Server) -> None:
    async def run() -> None:
        async with AsyncClient(server.tcp) as client, client.stream("slow", "asyncio") as stream:
            results, taken = [], []
            async for r in stream.watch(frames(60, taken)):
                assert 0.04 < r.age <= time.time() - taken[r.seq]
                results.append(r)
        seqs = [r.seq for r in results]
        assert seqs == sorted(set(seqs))
        assert seqs[-1] == 59, "the last frame is executed"
        assert [round(float(r.answer.tensors[0]) - 0.05) for r in results] == seqs
        assert stream.superseded > 0
        assert len(results) + stream.superseded + stream.dropped == 60

    asyncio.run(run())


def test_a_stream_of_all_frames(client: Client) -> None:
    with client.stream("slow", "all", keep="all") as stream:
        results = list(stream.watch(frames(15)))
    assert [r.seq for r in results] == list(range(15))
    assert all(r.skipped == 0 and r.answer for r in results)
    assert stream.superseded == stream.dropped == 0


def test_a_superseded_frame_is_told_by_which(client: Client) -> None:
    """Each on its own connection, as on one connection the answers would wait for the first."""
    others = [Client(client._name) for _ in range(2)]
    try:
        for seconds in (0.5, 2, 8):  # a busy machine may have executed the first before the others arrive
            stream = f"by {seconds}"
            one = client.submit("slow", np.array([seconds, 0], "f4"), stream=stream, seq=1, keep="latest")
            time.sleep(seconds / 5)
            two = others[0].submit("slow", np.array([0, 0], "f4"), stream=stream, seq=2, keep="latest")
            time.sleep(seconds / 5)
            three = others[1].submit("slow", np.array([0, 0], "f4"), stream=stream, seq=3, keep="latest")
            error = two.exception(60)
            if error:
                break
        assert isinstance(error, shiva_client.Superseded), error
        assert (error.by, error.code, error.retryable) == (3, 409, False)
        assert one.result(60).metadata["skipped"] == 0
        assert three.result(60).metadata["skipped"] == 1
    finally:
        for other in others:
            other.close()


Handler = Callable[[shiva.ShivaMessage], Awaitable[shiva.ShivaMessage]]


@contextmanager
def reference(handler: Handler) -> Iterator[int]:
    """The port of a server of the reference package."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    loop, server = asyncio.new_event_loop(), shiva.ShivaServerAsync(handler)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.wait_for_connections("127.0.0.1", port, forever=False), loop).result(60)
    yield port
    asyncio.run_coroutine_threadsafe(server.close(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def negative(message: shiva.ShivaMessage) -> shiva.ShivaMessage:
    if message.namespace == "fails":
        raise ValueError("no such luck")
    return shiva.ShivaMessage(
        metadata=message.metadata, tensors=[np.asarray(-t) for t in message.tensors], namespace=message.namespace
    )


def test_the_reference_server() -> None:
    """It knows no names, parameters or streams: it returns them unchanged."""
    with reference(negative) as port:
        with Client("127.0.0.1", port) as client:
            for dtype in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "c8", "c16", "longdouble"):
                sent = np.arange(6, dtype=dtype).reshape(2, 3)
                answer = client.infer("any", sent, timeout=60, user="ann")
                assert same_bits(answer["0"], -sent), dtype
                assert answer.metadata["user"] == "ann"
            many = [client.submit("any", [i]) for i in range(100)]
            assert [int(f.result(60)["0"][0]) for f in many] == [-i for i in range(100)]
            with pytest.raises(shiva_client.RemoteError, match="ValueError: no such luck") as e:
                client.infer("fails")
            assert (e.value.type, e.value.code, e.value.retryable) == ("ValueError", 0, False)
            assert client.infer("any", {"x": [1], "y": 2.5})["y"].item() == -2.5
            with client.stream("any", "cam", keep="all") as stream:
                results = list(stream.watch([[i] for i in range(20)]))
            assert [(r.seq, int(r.answer["0"][0])) for r in results] == [(i, -i) for i in range(20)]

        async def run() -> None:
            async with AsyncClient("127.0.0.1", port) as client:
                answers = await asyncio.gather(*(client.infer("any", [i]) for i in range(100)))
                assert [int(a["0"][0]) for a in answers] == [-i for i in range(100)]

        asyncio.run(run())


def test_a_container_that_goes_and_comes(server: Server, start: Start) -> None:
    with Client(server.tcp) as client:
        process = start("killed_model.py", MODEL_NAME="comes")
        server.wait_ready("comes/1")
        client.infer("comes", np.array([0], "f4"))
        process.kill()
        server.wait_gone("comes/1")
        with pytest.raises(shiva_client.Unavailable) as e:
            client.infer("comes", np.array([0], "f4"), timeout=0.5)
        assert e.value.retryable
        start("killed_model.py", MODEL_NAME="comes")
        wait(lambda: "comes/1" in server.ready(), "comes/1 ready")
        assert client.infer("comes", np.array([0], "f4"))

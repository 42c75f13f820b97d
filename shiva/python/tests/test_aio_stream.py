from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any

import numpy as np
import pytest
import shiva_client
from conftest import Server
from shiva_client import AsyncClient, AsyncStream, Message
from test_stream import newest


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 30))

    return run


def opened(server: Server, keep: Any = "latest", **kwargs: Any) -> AsyncStream:
    return AsyncClient(server.address, **kwargs).stream("m", "cam", keep=keep)


@in_a_loop
async def test_results_of_frames(server: Server) -> None:
    server.handler = newest
    async with AsyncClient(server.address) as client:
        async with client.stream("m", "cam", keep="all", timeout=3) as stream:
            for i in range(30):
                assert await stream.push(np.array([i]), captured_at=time.time() - 1) == i
            stream.finish()
            results = [result async for result in stream]
    assert [r.seq for r in results] == list(range(2, 30, 3))
    assert [int(r.answer.tensors[0][0]) for r in results] == [int(r.frame[0]) for r in results]
    assert all(r.skipped == 2 and 1 <= r.age < 5 for r in results)
    assert (stream.superseded, stream.dropped) == (20, 0)
    sent = server.seen[0].metadata
    assert abs(sent.pop("captured_at") / 1000 - time.time() + 1) < 5
    assert 2000 < sent.pop("timeout_ms") <= 3000  # less the time to connect
    assert sent == {"stream": "cam", "seq": 0, "keep": "all"}


@in_a_loop
async def test_only_the_newest_results_wait(server: Server) -> None:
    async with opened(server, keep=3) as stream:
        for i in range(20):
            await stream.push([i])
        stream.finish()
        while not stream.ended:
            await asyncio.sleep(0.001)
        assert [r.seq async for r in stream] == [17, 18, 19]
    assert stream.dropped == 17


@in_a_loop
async def test_a_loop_that_pushes_lets_others_take(server: Server) -> None:
    """Even if neither its frames nor the connection make it wait."""
    seen: list[int] = []
    async with opened(server, keep="all", in_flight=10_000) as stream:

        async def take() -> None:
            async for result in stream:
                seen.append(result.seq)

        taking = asyncio.create_task(take())
        while not seen:
            await stream.push([0])
        stream.finish()
        await taking


@in_a_loop
async def test_a_loop_that_pushes_and_takes(server: Server) -> None:
    server.handler = newest
    async with opened(server) as stream:
        assert await stream.take(0) is None
        assert await stream.take(0.01) is None
        seen = []
        for i in range(30):
            await stream.push([i])
            if result := await stream.take(0):
                seen.append(result.seq)
        while not seen:  # the event loop continues although take does not wait
            if result := await stream.take(0):
                seen.append(result.seq)
        stream.finish()
        while result := await stream.take():
            seen.append(result.seq)
        assert await stream.take() is None
    assert seen[-1] == 29
    assert len(seen) + stream.superseded + stream.dropped == 30
    assert seen == sorted(seen)


@pytest.mark.parametrize("end", ["close", "finish"])
@in_a_loop
async def test_closing_ends_a_push_that_waits(server: Server, end: str) -> None:
    async with opened(server, keep="all") as stream:
        pushed: list[int] = []

        async def push() -> None:
            for i in range(1000):
                pushed.append(await stream.push([i]))

        pushing = asyncio.create_task(push())
        while not stream._full:
            await asyncio.sleep(0.001)
        if end == "close":
            await stream.close()
        else:
            stream.finish()
        with pytest.raises(ValueError, match="takes no more frames"):
            await pushing
        assert 64 <= len(pushed) <= 64 + 128
        assert [r.seq async for r in stream] == pushed


@in_a_loop
async def test_a_push_that_is_cancelled_sends_nothing(server: Server) -> None:
    """While results wait, and while requests are unanswered; its slot is free afterwards."""
    async with opened(server, keep="all") as stream:

        async def fill() -> None:
            for i in range(1000):
                await stream.push([i])

        filling = asyncio.create_task(fill())
        while not stream._full:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)  # now it waits
        filling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await filling
        while stream._open:
            await asyncio.sleep(0.001)
        seen = []
        while stream._full:
            result = await stream.take(0)
            assert result
            seen.append(result.seq)
        next_seq = await stream.push([-1])
        stream.finish()
        seen.extend([r.seq async for r in stream])
        assert seen == list(range(next_seq + 1))

    answer = threading.Event()
    server.seen.clear()
    server.handler = lambda m: Message("m", {}) if answer.wait(20) else None
    async with opened(server, keep="all", in_flight=1) as stream:
        await stream.push([0])
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(stream.push([1]), 0.05)
        answer.set()
        assert await stream.push([2], seq=2) == 2
        stream.finish()
        assert [r.seq async for r in stream] == [0, 2]
    assert [m.metadata["seq"] for m in server.seen] == [0, 2]


@in_a_loop
async def test_a_take_that_is_cancelled_loses_nothing(server: Server) -> None:
    async with opened(server, keep="all") as stream:
        other = asyncio.create_task(stream.take())
        taking = asyncio.create_task(stream.take())
        await asyncio.sleep(0.01)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        await stream.push([0])
        assert (result := await other)
        assert result.seq == 0

        async def loop() -> None:
            async for _ in stream:
                raise AssertionError

        iterating = asyncio.create_task(loop())
        await asyncio.sleep(0.01)
        iterating.cancel()
        await stream.push([1])
        stream.finish()
        assert [r.seq async for r in stream] == [1]


@in_a_loop
async def test_leaving_the_loop_ends_the_task(server: Server) -> None:
    ended = []

    async def frames() -> AsyncIterator[list[int]]:
        try:
            yield [0]
            await asyncio.sleep(1000)
        finally:
            ended.append("frames")

    async def watch() -> None:
        async with opened(server) as stream:
            async for result in stream.watch(frames()):
                assert result.seq == 0
                seen.append(result)
                if leave:
                    break
        assert stream.ended

    seen: list[shiva_client.Result] = []
    leave = True
    await watch()
    leave = False
    watching = asyncio.create_task(watch())
    while len(seen) < 2:
        await asyncio.sleep(0.001)
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
    while any(task.get_name().startswith("shiva stream") for task in asyncio.all_tasks()):
        await asyncio.sleep(0.001)
    assert ended == ["frames", "frames"]


@in_a_loop
async def test_a_camera_that_blocks_stops_nobody(server: Server) -> None:
    def frames() -> Iterator[list[int]]:
        for i in range(3):
            yield [i]
            assert go_on.wait(20)  # until the loop has seen the previous frame
            go_on.clear()

    go_on, seen = threading.Event(), []
    async with opened(server, keep="all") as stream:
        async for result in stream.watch(frames()):
            seen.append(result.seq)
            go_on.set()
    assert seen == [0, 1, 2]


@in_a_loop
async def test_watch(server: Server) -> None:
    async def frames() -> AsyncIterator[Any]:
        for i in range(200):
            yield np.array([i])

    async with opened(server, keep="all") as stream:
        assert [r.seq async for r in stream.watch(frames())] == list(range(200))
    async with opened(server, keep="all") as stream:
        assert [r.seq async for r in stream.watch(np.arange(200))] == list(range(200))


@in_a_loop
async def test_watch_raises_what_the_frames_raise(server: Server) -> None:
    def frames() -> Iterator[list[int]]:
        yield [0]
        raise OSError("the camera is gone")

    async with opened(server, keep="all") as stream:
        seen: list[int] = []

        async def watch() -> None:
            async for result in stream.watch(frames()):
                seen.append(result.seq)

        with pytest.raises(OSError, match="the camera is gone"):
            await watch()
        assert seen == [0]
        assert stream.ended
    async with opened(server) as stream:
        with pytest.raises(shiva_client.ProtocolError, match="dtype object"):
            assert [r async for r in stream.watch([[1, None]])] == []


@in_a_loop
async def test_errors_are_of_the_frame(server: Server) -> None:
    server.handler = lambda m: Message("!error", {"type": "Unavailable", "message": "no container"})
    async with opened(server) as stream:
        await stream.push([1], seq=5)
        stream.finish()
        (result,) = [r async for r in stream]
        assert (result.seq, result.skipped) == (5, 0)
        with pytest.raises(shiva_client.Unavailable):
            _ = result.answer
    async with AsyncClient("127.0.0.1", 1).stream("m", "cam") as stream:
        await stream.push([1])
        stream.finish()
        (result,) = [r async for r in stream]
        with pytest.raises(shiva_client.Unreachable, match="did not run"):
            _ = result.answer


@in_a_loop
async def test_a_silent_server_is_given_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shiva_client.aio_link.GRACE", 0.05)
    over = threading.Event()
    server.handler = lambda m: Message("m", {}) if over.wait(20) else None
    timeout = 0.1
    while not server.seen:  # a connection takes its time
        async with AsyncClient(server.address, in_flight=1).stream("m", "cam", keep=2, timeout=timeout) as stream:
            await stream.push([0])
            await stream.push([1])  # no slot is free before its time is over
            stream.finish()
            results = [r async for r in stream]
        timeout *= 2
    assert [r.seq for r in results] == [0, 1]
    for result, may_have_run in zip(results, (True, False), strict=True):
        with pytest.raises(shiva_client.TimedOut) as raised:
            _ = result.answer
        assert raised.value.may_have_run is may_have_run
    over.set()


@in_a_loop
async def test_closing_ends_who_waits(server: Server) -> None:
    """It fails the task that iterates, with the error in flight, and the task that pushes."""
    over = threading.Event()
    server.handler = lambda m: Message("m", {}) if over.wait(20) else None
    client = AsyncClient(server.address, in_flight=1)
    stream = client.stream("m", "cam", keep=5)
    await client.close()  # the stream has a connection of its own
    await stream.push([0])
    pushing = asyncio.create_task(stream.push([1]))
    taking = asyncio.create_task(stream.take())
    await asyncio.sleep(0.05)
    assert not pushing.done()
    assert not taking.done()
    await stream.close()
    await pushing
    results = [await taking, *[r async for r in stream]]
    assert [r and r.seq for r in results] == [0, 1]
    for result in results:
        assert result
        with pytest.raises(shiva_client.ClientClosed):
            _ = result.answer
    with pytest.raises(ValueError, match="takes no more frames"):
        await stream.push([2])
    over.set()


@pytest.mark.parametrize("keep", ["newest", 0, -1, True, None])
def test_keep(keep: Any) -> None:
    with pytest.raises(ValueError, match="keep is"):
        AsyncClient("127.0.0.1").stream("m", "cam", keep=keep)

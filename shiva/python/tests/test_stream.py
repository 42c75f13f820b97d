from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import shiva_client
from conftest import Server
from shiva_client import Client, Message


def newest(message: Message) -> Message:
    """Supersedes all but every third frame, like a server with a slow model."""
    seq = message.metadata["seq"]
    if seq % 3 != 2:
        return Message("!error", {"type": "Superseded", "message": "by a newer one", "by": seq + 1})
    return Message(message.namespace, {"skipped": 2, "seq": seq}, message.tensors)


def test_results_of_frames(server: Server) -> None:
    server.handler = newest
    with Client(server.address) as client, client.stream("m", "cam", keep="all", timeout=3) as stream:
        for i in range(30):
            assert stream.push(np.array([i]), captured_at=time.time() - 1) == i
        stream.finish()
        results = list(stream)
    assert [r.seq for r in results] == list(range(2, 30, 3))
    assert [int(r.answer.tensors[0][0]) for r in results] == [int(r.frame[0]) for r in results]
    assert all(r.skipped == 2 and 1 <= r.age < 5 for r in results)
    assert (stream.superseded, stream.dropped) == (20, 0)
    sent = server.seen[0].metadata
    assert abs(sent.pop("captured_at") / 1000 - time.time() + 1) < 5
    assert 2000 < sent.pop("timeout_ms") <= 3000  # less the time to connect
    assert sent == {"stream": "cam", "seq": 0, "keep": "all"}


def test_the_age_survives_changes_of_the_clock(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    hours = iter([1e9, *[1e9 - 3600.0] * 10])
    with Client(server.address) as client, client.stream("m", "cam") as stream:
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: next(hours))
            stream.push([0])
            result = stream.take()
        assert result
        assert 0 <= result.age < 60
        stream.push([1], captured_at=time.time() + 3600)  # by a clock that is ahead
        ahead = stream.take()
    assert ahead
    assert 0 <= ahead.age < 60


def test_only_the_newest_result_waits(server: Server) -> None:
    with Client(server.address) as client, client.stream("m", "cam") as stream:
        for i in range(20):
            stream.push([i])
        while len(server.seen) < 20:
            time.sleep(0.001)  # a frame is answered as soon as it is seen
        stream.finish()
        results = list(stream)
    assert results[-1].seq == 19
    assert len(results) + stream.dropped == 20


def test_leaving_the_loop_ends_the_thread(server: Server) -> None:
    pushed = 0

    def frames() -> Iterator[list[int]]:
        nonlocal pushed
        while True:
            pushed += 1
            yield [pushed]

    with Client(server.address) as client, client.stream("m", "cam") as stream:
        for result in stream.watch(frames()):
            assert result.seq >= 0
            break
        while any(t.name.startswith("shiva stream") for t in threading.enumerate()):
            time.sleep(0.001)


def test_watch_raises_what_the_frames_raise(server: Server) -> None:
    def frames() -> Iterator[list[int]]:
        yield [0]
        raise OSError("the camera is gone")

    with Client(server.address) as client, client.stream("m", "cam", keep="all") as stream:
        seen: list[int] = []
        with pytest.raises(OSError, match="the camera is gone"):
            seen.extend(r.seq for r in stream.watch(frames()))
        assert stream.ended
    with Client(server.address) as client, client.stream("m", "cam") as stream:
        with pytest.raises(shiva_client.ProtocolError, match="dtype object"):
            list(stream.watch([[1, None]]))


def test_a_loop_that_pushes_and_takes(server: Server) -> None:
    server.handler = newest
    with Client(server.address) as client, client.stream("m", "cam") as stream:
        assert stream.take(0) is None
        seen = []
        for i in range(30):
            stream.push([i])
            if result := stream.take(0):
                seen.append(result.seq)
        stream.finish()
        while result := stream.take():
            seen.append(result.seq)
        assert stream.take() is None
    assert seen[-1] == 29
    assert len(seen) + stream.superseded + stream.dropped == 30
    assert seen == sorted(seen)


@pytest.mark.parametrize("end", ["close", "finish"])
def test_closing_ends_a_push_that_waits(server: Server, end: str) -> None:
    """With keep="all" nothing is dropped, so push waits until results are taken; but not
    forever."""
    with Client(server.address) as client, client.stream("m", "cam", keep="all") as stream:

        def end_it() -> None:
            while not stream._full:
                time.sleep(0.001)
            time.sleep(0.01)  # now it waits
            getattr(stream, end)()

        threading.Thread(target=end_it).start()
        pushed: list[int] = []
        with pytest.raises(ValueError, match="takes no more frames"):
            pushed.extend(stream.push([i]) for i in range(1000))
        assert len(pushed) >= 64
        assert [r.seq for r in stream] == pushed


def test_watch(server: Server) -> None:
    with Client(server.address) as client, client.stream("m", "cam", keep="all") as stream:
        assert [r.seq for r in stream.watch(np.array([i]) for i in range(200))] == list(range(200))


def test_errors_are_of_the_frame(server: Server) -> None:
    server.handler = lambda m: Message("!error", {"type": "Unavailable", "message": "no container"})
    with Client(server.address) as client, client.stream("m", "cam") as stream:
        stream.push([1], seq=5)
        stream.finish()
        (result,) = stream
        assert (result.seq, result.skipped) == (5, 0)
        with pytest.raises(shiva_client.Unavailable):
            _ = result.answer


def test_closing_ends_the_loop(server: Server) -> None:
    server.handler = lambda m: threading.Event().wait(10) and None
    client = Client(server.address)
    stream = client.stream("m", "cam")
    stream.push([1])
    threading.Timer(0.05, stream.close).start()
    (result,) = stream
    with pytest.raises(shiva_client.ClientClosed):
        _ = result.answer
    with pytest.raises(ValueError, match="takes no more frames"):
        stream.push([2])


@pytest.mark.parametrize("keep", ["newest", 0, -1, True, None])
def test_keep(keep: Any) -> None:
    with pytest.raises(ValueError, match="keep is"):
        Client("127.0.0.1").stream("m", "cam", keep=keep)

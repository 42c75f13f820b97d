"""Servers that are silent, down, slow or faulty, and programs that fork, are interrupted or
exit."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import shiva_client
from conftest import Server, echo
from shiva_client import AsyncClient, Client, Message, backoff, wire
from shiva_client.backoff import Backoff

HUGE = np.zeros(64 << 20, np.uint8)  # more than the buffers of a socket hold


def until(test: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not test():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shiva_client.connection.GRACE", 0.05)
    monkeypatch.setattr("shiva_client.connection.TICK", 0.02)


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that accepts connections, and neither reads nor writes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
def nobody() -> Iterator[int]:
    """A port that refuses connections: it is bound, but nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield port(taken)


def port(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def fills(conn: socket.socket) -> bool:
    """Whether a huge message, which is never read, has begun to arrive."""
    return len(conn.recv(1000, socket.MSG_PEEK)) == 1000


@pytest.mark.usefixtures("impatient")
def test_a_silent_server_costs_the_deadline_and_no_more(server: Server) -> None:
    go = threading.Event()

    def wait_then_echo(message: Message) -> Message:
        go.wait(20)
        return echo(message)

    with Client(server.address, in_flight=2) as client:
        client.infer("m", timeout=20)  # a connection takes its time
        server.handler = wait_then_echo
        first = [client.submit("m", [i], timeout=0.05) for i in range(2)]
        with pytest.raises(shiva_client.TimedOut, match="did not run") as e:
            client.infer("m", timeout=0.05)  # two late requests hold all slots
        assert not e.value.may_have_run
        for future in first:
            with pytest.raises(shiva_client.TimedOut, match=r"within 0\.05 s.*may have run"):
                future.result(20)
        go.set()
        assert client.infer("m", [3], timeout=20).tensors[0].tolist() == [3]
    assert server.connections == 1


@pytest.mark.usefixtures("impatient")
def test_a_server_that_reads_nothing(silent: socket.socket) -> None:
    with Client("127.0.0.1", port(silent)) as client:
        others: list[BaseException] = []

        def other() -> None:
            try:
                client.infer("m", timeout=0.1)
            except shiva_client.NotAnswered as error:
                others.append(error)

        small = client.submit("m")
        thread = threading.Thread(target=other)
        threading.Timer(0.02, thread.start).start()
        with pytest.raises(shiva_client.TimedOut, match="may have run"):
            client.infer("m", HUGE, timeout=3)
        with pytest.raises(shiva_client.ConnectionLost, match="reads nothing"):
            small.result(20)
        until(lambda: len(others) == 1)
        thread.join()
        assert isinstance(others[0], shiva_client.TimedOut)


def test_close_wakes_who_sends_and_who_waits(silent: socket.socket) -> None:
    client = Client("127.0.0.1", port(silent), in_flight=2)
    errors: list[shiva_client.ClientClosed] = []

    def ask(*inputs: np.ndarray) -> None:
        with pytest.raises(shiva_client.ClientClosed) as e:
            client.infer("m", *inputs)
        errors.append(e.value)

    threads = [threading.Thread(target=ask, args=args) for args in ((HUGE,), (), (), ())]
    threads[0].start()
    conn, _ = silent.accept()
    until(lambda: fills(conn))
    for thread in threads[1:]:
        thread.start()
    time.sleep(0.02)  # let them wait: one for the sender, two for a slot
    client.close()
    for thread in threads:
        thread.join(20)
    conn.close()
    assert sorted(e.may_have_run for e in errors) == [False, False, False, True]


def test_close_ends_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "pause", lambda *_: 3600.0)
    client = Client("127.0.0.1", 1)
    threading.Timer(0.05, client.close).start()
    with pytest.raises(shiva_client.ClientClosed, match="did not run"):
        client.infer("m")

    async def run() -> None:
        client = AsyncClient("127.0.0.1", 1)
        asking = asyncio.create_task(client.infer("m"))
        await asyncio.sleep(0.05)
        await client.close()
        with pytest.raises(shiva_client.ClientClosed, match="did not run"):
            await asking

    asyncio.run(run())


def test_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(backoff.time, "monotonic", lambda: now)
    b, never = Backoff(), float("inf")
    assert b.pause(now, never) == 0
    pauses = []
    for _ in range(12):
        b.failed("nobody there", now)
        pauses.append(round(b.pause(now, never), 3))
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, *[backoff.MAX_PAUSE] * 6]
    with pytest.raises(shiva_client.Unreachable, match="nobody there"):
        b.pause(now - 1, never)  # it waited while the attempt failed
    with pytest.raises(shiva_client.Unreachable, match="nobody there"):
        b.pause(now, now + 1)  # its deadline is before the next attempt
    b.succeeded()
    assert b.pause(now - 1, never) == 0


def test_the_pauses_grow_and_are_not_added_up(nobody: int) -> None:
    """Requests of many threads to an unreachable server share one attempt, and one pause."""
    with Client("127.0.0.1", nobody) as client:
        began = time.monotonic()
        for _ in range(4):  # the pauses before them are 0, 0.1, 0.2 and 0.4 s
            with pytest.raises(shiva_client.Unreachable):
                client.infer("m")
        assert time.monotonic() - began > 0.69
        futures: list[Future[None]] = []

        def ask() -> None:
            with pytest.raises(shiva_client.Unreachable):
                client.infer("m")
            futures.append(Future())

        threads = [threading.Thread(target=ask) for _ in range(50)]  # minutes if one by one
        for thread in threads:
            thread.start()
        until(lambda: len(futures) == 50)


def test_a_server_that_starts_again(server: Server) -> None:
    """Each request that was sent fails once, and each later one is answered by the new server."""
    threads, answers, lost, end = [], [], [], threading.Event()
    with Client(server.address) as client:

        def ask(n: int) -> None:
            i = 0
            while not end.is_set():
                i += 1
                try:
                    assert client.infer("m", [n, i], timeout=20).tensors[0].tolist() == [n, i]
                    answers.append(n)
                except (shiva_client.ConnectionLost, shiva_client.Unreachable):
                    lost.append(n)

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            done = len(answers)
            until(lambda done=done: len(answers) > done + 100)
            server.restart()
        done = len(answers)
        until(lambda: len(answers) > done + 100)
        end.set()
        for thread in threads:
            thread.join(20)
    assert lost
    assert set(answers) == set(range(6))


def test_an_interrupted_sender_leaves_no_half_message(silent: socket.socket) -> None:
    """After Ctrl-C in the middle of a message, the next one is sent whole on a new connection."""
    client = Client("127.0.0.1", port(silent))
    before = client.submit("m", [1])
    first, _ = silent.accept()

    def interrupt() -> None:
        until(lambda: fills(first))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            client.infer("m", HUGE)
    finally:
        signal.signal(signal.SIGALRM, handler)
    with pytest.raises(shiva_client.ConnectionLost, match="was interrupted"):
        before.result(20)
    after = client.submit("after")
    first.close()
    conn, _ = silent.accept()
    with conn:
        assert conn.recv(100).endswith(b"after")
        client.close()
    assert isinstance(after.exception(20), shiva_client.ClientClosed)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork with threads is what is tested
def test_a_fork(server: Server) -> None:
    go = threading.Event()

    def wait_then_echo(message: Message) -> Message:
        if message.namespace == "held":
            go.wait(20)
        return echo(message)

    server.handler = wait_then_echo
    with Client(server.address) as client:
        client.infer("m")
        waiting = client.submit("held", [7])
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with pytest.raises(shiva_client.ConnectionLost, match="forked"):
                    waiting.result(20)
                if client.infer("m", [5]).tensors[0].tolist() == [5]:
                    status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        go.set()
        assert waiting.result(20).tensors[0].tolist() == [7]
        assert client.infer("m", [6]).tensors[0].tolist() == [6]
    assert server.connections == 2


def test_nothing_is_left_behind(server: Server) -> None:
    def sockets() -> int:
        count = 0
        for fd in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # the directory's descriptor is closed by now
                count += os.readlink(f"/proc/self/fd/{fd}").startswith("socket")
        return count

    def readers() -> int:
        return sum(thread.name.startswith("shiva") for thread in threading.enumerate())

    for i in range(30):
        with Client(server.address) as client, client.stream("m", "cam") as stream:
            client.infer("m", [1])
            stream.push([1])
        dropped = Client(server.address)  # never closed
        dropped.infer("m", [i])
        del dropped
    gc.collect()
    until(lambda: readers() == 0)
    until(lambda: sockets() <= 3)  # the listener, and others of the tests

    async def run() -> None:
        for _ in range(10):
            async with AsyncClient(server.address) as client:
                await client.infer("m", [1])
            async with AsyncClient(server.address) as client:
                gone = asyncio.create_task(client.infer("m", [1]))
                await asyncio.sleep(0)
            with pytest.raises(shiva_client.ClientClosed):
                await gone
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())
    until(lambda: sockets() <= 3)


def served(answer: bytes) -> Iterator[int]:
    """The port of a server that answers everything with these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

        def serve(conn: socket.socket) -> None:
            with conn, suppress(OSError):
                conn.recv(100_000)
                conn.sendall(answer)
                conn.recv(100_000)

        threading.Thread(target=accept, daemon=True).start()
        yield port(listener)
        listener.shutdown(socket.SHUT_RDWR)


MAD = [
    Message("m", {"__tensors__": [[1]]}, [np.zeros(1)]),
    Message("m", {"__tensors__": "x", "skipped": "many"}, [np.zeros(1)]),
    Message("!error", {"type": [1], "message": 7, "code": "x", "id": {}, "retryable": 2}),
    Message("!error", {}),
    Message("m", {"__texts__": 3}),
]
TEXTS: list[Any] = [["a", ["b"]], [["a"], ["b", "c"]], {"b64": 7}, {"b": ""}, 1, [None]]
MAD += [Message("m", {"__texts__": {"t": t}}) for t in TEXTS]


@pytest.mark.parametrize("message", MAD, ids=lambda m: str(m.metadata))
def test_mad_answers(message: Message) -> None:
    """Odd answers are returned, or raise errors of this package."""
    for to in served(b"".join(wire.encode(message))):
        with Client("127.0.0.1", to) as client, client.stream("m", "cam") as stream:
            future = client.submit("m", timeout=20)
            if isinstance(error := future.exception(), Exception):
                assert isinstance(error, shiva_client.ShivaError), error
            else:
                assert {name: array.shape for name, array in future.result().items()} in ({"0": (1,)}, {})
            stream.push([1])
            stream.finish()
            assert len(list(stream)) == 1


def test_rubbish(server: Server) -> None:
    """Answers with a few corrupted bytes soon give an answer or a typed error."""
    rng = random.Random(7)
    good = b"".join(wire.encode(Message("m", {"a": [1]}, [np.arange(6.0).reshape(2, 3), np.array([1, 2], "u1")])))
    for _ in range(60):
        bad = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        bad += bytes(rng.randrange(256) for _ in range(rng.randrange(40)))
        for to in served(bytes(bad[: rng.randrange(1, len(bad) + 1)])):
            with Client("127.0.0.1", to, max_message=1 << 20) as client:
                future = client.request(Message("m"), timeout=20)
                time.sleep(0.001)
                client.close()
                assert future.exception(0) is None or isinstance(future.exception(0), shiva_client.NotAnswered)


@pytest.mark.usefixtures("impatient")
def test_asyncio(server: Server, silent: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shiva_client.aio_link.GRACE", 0.05)

    async def run() -> None:
        for timeout in (0.1, 1, 10):  # a connection takes its time
            async with AsyncClient("127.0.0.1", port(silent), in_flight=2) as client:
                errors = await asyncio.gather(
                    *(client.infer("m", timeout=timeout) for _ in range(3)), client.infer("m", HUGE, timeout=timeout),
                    return_exceptions=True,
                )  # fmt: skip
            assert [type(e) for e in errors] == [shiva_client.TimedOut] * 4
            ran = sorted(e.may_have_run for e in errors)  # type: ignore[union-attr]
            if ran == [False, False, True, True]:
                break
        assert ran == [False, False, True, True]
        async with AsyncClient(server.address) as client:
            await client.infer("m", [1])
            tasks = [asyncio.create_task(client.infer("m", [i])) for i in range(20)]
            await asyncio.sleep(0)
            server.restart()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(r, shiva_client.Answer | shiva_client.NotAnswered) for r in results), results
            assert len({id(r) for r in results}) == 20  # each has an error of its own
            assert (await client.infer("m", [2], timeout=20)).tensors[0].tolist() == [2]

    asyncio.run(run())


def test_an_asyncio_client_has_one_loop(server: Server) -> None:
    client, loop = AsyncClient(server.address), asyncio.new_event_loop()
    loop.run_until_complete(client.infer("m", [1]))
    with pytest.raises(RuntimeError, match="belongs to the event loop"):
        asyncio.run(client.request(Message("m")))  # type: ignore[arg-type]
    loop.run_until_complete(client.close())
    loop.close()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_deadline_is_less_by_the_wait_for_a_slot(server: Server, asynchronous: bool) -> None:
    def slow(message: Message) -> Message:
        time.sleep(0.5)
        return echo(message)

    server.handler = slow

    async def ask() -> None:
        async with AsyncClient(server.address, in_flight=1) as client:
            await asyncio.gather(client.infer("m", [1], timeout=30), client.infer("m", [2], timeout=30))
            with pytest.raises(shiva_client.TimedOut) as late:
                await asyncio.gather(client.infer("m", [3], timeout=30), client.infer("m", [4], timeout=0.1))
            assert not late.value.may_have_run

    if asynchronous:
        asyncio.run(ask())
    else:
        with Client(server.address, in_flight=1) as client:
            first = client.submit("m", [1], timeout=30)
            client.infer("m", [2], timeout=30)
            first.result()
            first = client.submit("m", [3], timeout=30)
            with pytest.raises(shiva_client.TimedOut) as late:
                client.infer("m", [4], timeout=0.1)
            assert not late.value.may_have_run
            first.result()
    first_left, second_left, third_left = (message.metadata["timeout_ms"] for message in server.seen)
    assert second_left <= 29_600
    assert second_left < min(first_left, third_left)


def test_an_exit_in_a_callback_does_not_end_the_reader(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    def leave(done: Future[Any]) -> None:
        raise SystemExit(3)

    release = threading.Event()
    server.handler = lambda message: echo(message) if release.wait(20) else None
    with Client(server.address) as client:
        future = client.submit("m", [1])
        future.add_done_callback(leave)
        release.set()
        assert future.result(20)
        assert client.infer("m", [2], timeout=20).tensors[0].tolist() == [2]
    until(lambda: "a callback of a request" in caplog.text)

"""One client for several servers, for both threads and asyncio."""

from __future__ import annotations

import asyncio
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
from shiva_client import (
    AsyncClient,
    Client,
    ConnectionLost,
    ContainerLost,
    Message,
    Overloaded,
    RemoteError,
    ShivaError,
    Unreachable,
    backoff,
    servers,
    silence,
)
from shiva_client.retry import Pursuit

FRAME = np.zeros(3, np.uint8)


class Member(Server):
    """One of several servers, whose behaviour can be replaced."""

    def __init__(self, behave: Callable[[Message], Message | None] = echo) -> None:
        self.behave = behave
        self.got = 0
        self.speaks = threading.Event()  # until then nothing is answered
        self.speaks.set()
        super().__init__(handler=self._handle)

    def _handle(self, message: Message) -> Message | None:
        self.speaks.wait()
        if message.namespace == "!live":
            return echo(message)
        self.got += 1
        return self.behave(message)

    def drains(self) -> None:
        self.behave = fails("Draining")

    def await_more(self, n: int) -> None:
        end, late = self.got + n, time.monotonic() + 30
        while self.got < end:
            assert time.monotonic() < late
            time.sleep(0.002)


def fails(kind: str) -> Callable[[Message], Message]:
    retryable = kind in ("Draining", "Overloaded", "Unavailable", "ContainerLost", "DeadlineExceeded")
    return lambda message: Message("!error", {"type": kind, "message": "no", "retryable": retryable})


class Looped:
    """An AsyncClient with the interface of Client, in an event loop of its own."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._client = AsyncClient(*args, **options)

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def infer(self, *args: Any, **options: Any) -> Any:
        return self._run(self._client.infer(*args, **options))

    def submit(self, *args: Any, **options: Any) -> Future[Any]:
        async def ask() -> Any:
            return await (await self._client.submit(*args, **options))

        return asyncio.run_coroutine_threadsafe(ask(), self._loop)

    def pushed(self, stream: Any) -> Any:
        async def push() -> Any:
            await stream.push(FRAME)
            return await stream.take(30)

        return self._run(push())

    def stream(self, *args: Any) -> Any:
        return self._client.stream(*args)

    def end(self, stream: Any) -> None:
        self._run(stream.close())

    def close(self) -> None:
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Threads(Client):
    """A Client with the additions that the tests need of both clients."""

    def pushed(self, stream: Any) -> Any:
        stream.push(FRAME)
        return stream.take(30)

    def end(self, stream: Any) -> None:
        stream.close()


Make = Callable[..., Any]


@pytest.fixture(params=[Threads, Looped], ids=["threads", "asyncio"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Make a client for several servers, which is closed after the test."""
    monkeypatch.setattr(backoff, "MAX_PAUSE", 0.05)
    made: list[Any] = []

    def client(members: Any, **options: Any) -> Any:
        addresses = ",".join(one if isinstance(one, str) else one.address for one in members)
        made.append(request.param(addresses, **options))
        return made[-1]

    yield client
    for one in made:
        one.close()


@pytest.fixture
def three() -> Iterator[list[Member]]:
    members = [Member(), Member(), Member()]
    yield members
    for one in members:
        with suppress(OSError):
            one.kill()


def met(client: Any, members: list[Member]) -> None:
    """Send requests until each server has got one, and reset the counts."""
    for one in members:
        before = one.got
        while one.got == before:
            client.infer("m", FRAME, timeout=30)
    for one in members:
        one.got = 0


def load(client: Any, act: Callable[[], None]) -> None:
    """Send requests from several threads while a function runs, and raise the first error."""
    over = threading.Event()
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            while not over.is_set():
                assert client.infer("m", FRAME, timeout=60).tensors[0].shape == (3,)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for one in threads:
        one.start()
    try:
        act()
    finally:
        over.set()
        for one in threads:
            one.join()
    if errors:
        raise errors[0]


def test_one_of_three_is_killed_with_requests_in_hand(make: Make, three: list[Member]) -> None:
    client = make(three, repeatable=True)
    met(client, three)
    taken = threading.Event()

    def swallow(message: Message) -> Message | None:
        taken.set()
        time.sleep(0.01)  # so that it gets more than one
        return None if three[0].got > 1000 else Message("!error", {"type": "ContainerLost", "retryable": True})

    def kill() -> None:
        three[0].behave = swallow
        assert taken.wait(30)
        three[0].kill()
        three[1].await_more(20)
        three[2].await_more(20)

    load(client, kill)


def test_what_was_submitted_goes_elsewhere_with_the_arrays_of_then(make: Make, three: list[Member]) -> None:
    client = make(three, repeatable=True)
    met(client, three)
    for one in three[:2]:
        one.behave = lambda message: None  # hangs up
    array = np.arange(3)
    futures = [client.submit("m", array, timeout=60) for _ in range(12)]
    answers = [future.result(60) for future in futures]
    array[:] = 7
    assert all(answer.tensors[0].tolist() == [0, 1, 2] for answer in answers)


@pytest.mark.parametrize(("route", "repeatable"), [("m", False), ("app/update", True)])
def test_a_lost_answer_is_not_asked_for_again_without_permission(
    make: Make, three: list[Member], route: str, repeatable: bool
) -> None:
    client = make(three, repeatable=repeatable)
    met(client, three)
    for one in three:
        one.behave = lambda message: None
    with pytest.raises(ConnectionLost) as caught:
        client.infer(route, FRAME, timeout=30)
    assert caught.value.may_have_run
    assert sum(one.got for one in three) == 1


@pytest.mark.parametrize(
    ("kind", "route", "repeatable", "again"),
    [
        ("Draining", "m", False, True),
        ("Draining", "app/update", False, True),
        ("Unavailable", "m", False, True),
        ("Unavailable", "app/update", False, False),
        ("NotFound", "m", False, True),
        ("ContainerLost", "m", False, False),
        ("InvalidInput", "m", True, False),
        ("DeadlineExceeded", "m", True, False),
    ],
)
def test_which_refusals_go_to_another_server(
    make: Make, three: list[Member], kind: str, route: str, repeatable: bool, again: bool
) -> None:
    client = make(three, repeatable=repeatable)
    met(client, three)
    three[0].behave = three[1].behave = fails(kind)
    for _ in range(15):
        if again:
            client.infer(route, FRAME, timeout=30)
        else:
            with suppress(RemoteError):
                client.infer(route, FRAME, timeout=30)
    tries = sum(one.got for one in three)
    assert tries > 15 if again else tries == 15


@pytest.mark.parametrize("kind", [Overloaded, ContainerLost])
def test_overloaded_servers_and_lost_containers_are_asked_twice_at_most(
    make: Make, three: list[Member], kind: type[RemoteError]
) -> None:
    client = make(three, repeatable=True)
    met(client, three)
    for one in three:
        one.behave = fails(kind.__name__)
    with pytest.raises(kind) as caught:
        client.infer("m", FRAME, timeout=30)
    assert sum(one.got for one in three) == 2
    assert len(caught.value.attempts) == 2
    assert str(caught.value).startswith("no answer from any server: 127.0.0.1:")


def test_what_ended_its_container_is_not_sent_again(make: Make, three: list[Member]) -> None:
    client = make(three, repeatable=True)
    met(client, three)
    for one in three:
        one.behave = lambda message: Message("!error", {"type": "ContainerLost", "retryable": False})
    with pytest.raises(ContainerLost):
        client.infer("m", FRAME, timeout=30)
    assert sum(one.got for one in three) == 1


@pytest.mark.parametrize("drains", [True, False])
def test_all_three_are_replaced(make: Make, three: list[Member], drains: bool) -> None:
    client = make(three, repeatable=not drains)
    met(client, three)

    def roll() -> None:
        for one in three:
            one.await_more(5)
            if drains:
                one.drains()
                one.await_more(1)
                one.close()  # connections end when the client closes them
            else:
                one.kill()
            for other in three:
                if other is not one:
                    other.await_more(5)
            one.behave = echo
            one._listen()
            one.await_more(5)

    load(client, roll)


def test_requests_go_where_fewer_wait(make: Make, three: list[Member]) -> None:
    client = make(three)
    met(client, three)
    go = threading.Event()

    def wait(message: Message) -> Message:
        go.wait(30)
        return message

    for one in three:
        one.behave = wait
    futures = [client.submit("m", FRAME, timeout=60) for _ in range(30)]
    links = getattr(client, "_client", client)._links.values()
    waiting: list[int] = []
    end = time.monotonic() + 30
    while sum(waiting) != 30 and time.monotonic() < end:
        waiting = sorted(link.waiting for link in links)
    go.set()
    for future in futures:
        future.result(60)
    # The fuller of two random choices is never chosen.
    assert sum(waiting) == 30
    assert waiting[0] >= 7
    assert waiting[2] <= 13


def test_a_request_that_a_thread_is_writing_waits_once() -> None:
    frame = np.zeros(64 << 20, np.uint8)  # more than sockets hold
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        host, port = listener.getsockname()
        with Client(f"{host}:{port}") as client:

            def ask() -> None:
                with suppress(ShivaError):
                    client.infer("m", frame)

            asking = threading.Thread(target=ask)
            asking.start()
            peer, _ = listener.accept()
            (link,) = client._links.values()
            end = time.monotonic() + 30
            while not (link._connection and link._connection.waiting) and time.monotonic() < end:
                time.sleep(0.001)
            assert link.waiting == 1
            listener.close()
            peer.close()
            asking.join()


def test_a_request_that_a_task_is_writing_waits_once(three: list[Member]) -> None:
    async def ask() -> int:
        most = 0
        async with AsyncClient(three[0].address) as client:
            asking = asyncio.create_task(client.infer("m", FRAME, timeout=60))
            while not asking.done():
                most = max([most, *(link.waiting for link in client._links.values())])
                await asyncio.sleep(0)
            await asking
        return most

    assert asyncio.run(ask()) == 1


@pytest.fixture
def never() -> Iterator[str]:
    """An address that accepts no connection: its queue is full, and nothing empties it."""
    made = []
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(10):
            sock = socket.socket()
            made.append(sock)
            sock.settimeout(0.1)
            try:
                sock.connect(listener.getsockname())
            except TimeoutError:
                break
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        for sock in made:
            sock.close()


@pytest.fixture
def mute() -> Iterator[str]:
    """An address that accepts connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def nobody() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_addresses_that_do_not_work_cost_nothing(
    make: Make, three: list[Member], never: str, mute: str, nobody: str
) -> None:
    client = make([never, mute, nobody, three[0]])
    for _ in range(50):
        client.infer("m", FRAME, timeout=30)
    client = make([never, mute, nobody], connect_timeout=0.1)
    with pytest.raises(Unreachable) as caught:
        client.infer("m", FRAME, timeout=0.8)
    assert not caught.value.may_have_run
    assert set(caught.value.attempts) == {never, mute, nobody}
    text = str(caught.value)
    assert all(address in text for address in (never, mute, nobody))
    assert "does not answer !live" in text
    assert "refused" in text or "Connect call failed" in text


def test_a_server_falls_silent(make: Make, three: list[Member], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENCE", 0.1)
    monkeypatch.setattr(silence, "CHECK_TIMEOUT", 0.5)
    client = make(three, repeatable=True)
    met(client, three)
    three[0].speaks.clear()
    waiting = [client.submit("m", FRAME, timeout=60) for _ in range(12)]
    for one in waiting:
        assert one.result(60).tensors[0].shape == (3,)
    assert not three[0].got
    three[0].speaks.set()
    met(client, three)


def test_all_are_silent(make: Make, three: list[Member], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENCE", 0.1)
    monkeypatch.setattr(silence, "CHECK_TIMEOUT", 0.1)
    client = make(three, repeatable=True)
    met(client, three)
    for one in three:
        one.speaks.clear()
    with pytest.raises(ShivaError, match=r"no answer for .* s, nor on another connection|does not answer !live"):
        client.infer("m", FRAME, timeout=3)
    for one in three:
        one.speaks.set()


def test_a_model_may_take_its_time(make: Make, three: list[Member], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENCE", 0.1)
    monkeypatch.setattr(silence, "CHECK_TIMEOUT", 30.0)
    client = make(three, repeatable=True)
    met(client, three)
    before = sum(one.connections for one in three)

    def slowly(message: Message) -> Message:
        end = time.monotonic() + 30
        while sum(one.connections for one in three) < before + 2:  # two liveness checks
            assert time.monotonic() < end
            time.sleep(0.01)
        return echo(message)

    for one in three:
        one.behave = slowly
    client.infer("m", FRAME, timeout=60)
    assert sum(one.got for one in three) == 1


def test_a_stream_stays_with_its_server(make: Make, three: list[Member]) -> None:
    client = make(three)
    met(client, three)
    stream = client.stream("m", "cam")

    def good() -> None:
        while True:
            with suppress(ShivaError):
                assert client.pushed(stream).answer is not None
                return

    def used() -> list[Member]:
        for one in three:
            one.got = 0
        for _ in range(10):
            assert client.pushed(stream).answer is not None
        return [one for one in three if one.got]

    [first] = used()
    first.kill()
    good()
    [second] = used()
    assert second is not first
    second.drains()  # and still accepts
    good()
    [third] = used()
    assert third not in (first, second)
    client.end(stream)


def test_a_name_is_followed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Member()
    members = [first]
    for i in (2, 3):  # the same port of other addresses
        one = Member.__new__(Member)
        one.path, one.context, one.behave, one.got, one.seen = None, None, echo, 0, []
        one.encoded, one.connections, one.port, one.handler = b"", 0, first.port, one._handle
        one.speaks = first.speaks
        monkeypatch.setattr(socket, "create_server", at(f"127.0.0.{i}"))
        one._listen()
        monkeypatch.undo()
        members.append(one)
    monkeypatch.setattr(backoff, "MAX_PAUSE", 0.05)
    monkeypatch.setattr(servers, "PERIOD", 0.01)
    monkeypatch.setattr(servers, "SOON", 0.01)
    real, answer = socket.getaddrinfo, ["127.0.0.1", "127.0.0.2"]

    def lookup(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host != "shivad.example":
            return real(host, port, *args, **options)
        if not answer:
            raise socket.gaierror("the resolver is away")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in answer]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    client = make([f"shivad.example:{first.port}"])

    def become(want: list[Member]) -> None:
        end = time.monotonic() + 30
        while True:
            for one in members:
                one.got = 0
            for _ in range(30):
                client.infer("m", FRAME, timeout=30)
            if [one for one in members if one.got] == want:
                return
            assert time.monotonic() < end
            time.sleep(0.01)

    become(members[:2])
    answer[:] = ["127.0.0.2", "127.0.0.3"]
    become(members[1:])
    answer.clear()
    time.sleep(0.05)
    become(members[1:])
    answer[:] = ["127.0.0.3"]
    become(members[2:])
    for one in members:
        one.kill()


def test_a_name_that_resolves_to_nothing(
    make: Make, three: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo

    def lookup(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host == "shivad.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, port, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    with pytest.raises(Unreachable, match=r"shivad\.example.*Name or service not known"):
        make(["shivad.example:1"]).infer("m", FRAME, timeout=5)
    # Among other servers it costs nothing.
    client = make(["shivad.example:1", three[0]])
    for _ in range(20):
        client.infer("m", FRAME, timeout=30)
    assert three[0].got == 20


def at(host: str) -> Callable[..., socket.socket]:
    def create(address: tuple[str, int], **options: Any) -> socket.socket:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, address[1]))
        made.listen()
        return made

    return create


class Balancer:
    """A plain TCP proxy, which passes each connection to the next server that accepts it."""

    def __init__(self, targets: list[Member], idle: float | None = None) -> None:
        self._targets, self._idle, self._next = targets, idle, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                for _ in self._targets:
                    self._next += 1
                    target = self._targets[self._next % len(self._targets)]
                    with suppress(OSError):
                        far = socket.create_connection(("127.0.0.1", target.port))
                        break
                else:
                    near.close()
                    continue
                for one, other in ((near, far), (far, near)):
                    one.settimeout(self._idle)
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(4096):
                other.sendall(data)
        for sock in (one, other):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def test_behind_a_balancer_of_connections(make: Make, three: list[Member]) -> None:
    balancer = Balancer(three)
    client = make([balancer.address], repeatable=True)

    def roll() -> None:
        for one in three * 2:
            others = [other for other in three if other is not one]
            one.drains()
            before = sum(other.got for other in others)
            while sum(other.got for other in others) < before + 5:
                time.sleep(0.002)
            one.behave = echo
        three[0].kill()
        before = sum(other.got for other in three[1:])
        while sum(other.got for other in three[1:]) < before + 5:
            time.sleep(0.002)

    load(client, roll)
    balancer.close()


def test_behind_a_balancer_that_closes_idle_connections(make: Make, three: list[Member]) -> None:
    balancer = Balancer(three[:1], idle=0.005)
    client = make([balancer.address], repeatable=True)
    for i in range(20):
        client.infer("m", FRAME, timeout=30)
        time.sleep(0.004 * (i % 3))
    assert three[0].connections > 1
    balancer.close()


def test_lists_of_addresses() -> None:
    with pytest.raises(ValueError, match="expected an address"):
        Client([])
    with pytest.raises(ValueError, match="expected an address"):
        Client(",")
    with pytest.raises(ValueError, match="expected a path"):
        Client("127.0.0.1,unix:")
    with pytest.raises(ValueError, match="servers is 0"):
        AsyncClient(["a", "b"], servers=0)


def test_servers_that_come_up_while_one_is_chosen() -> None:
    """None was asked, and none was down when the next round was to be timed."""
    pursuit: Pursuit[int] = Pursuit("m", resendable=True, repeatable=False, timeout=20, patience=1)
    assert pursuit.pause() is not None
    pursuit = Pursuit("m", resendable=True, repeatable=False, timeout=0.001, patience=1)
    assert pursuit.pause() is None
    assert isinstance(pursuit.error(), shiva_client.Unreachable)

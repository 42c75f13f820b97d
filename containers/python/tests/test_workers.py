"""Which thread reads: the computing one while the model is quick, and otherwise another one."""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from echo_model import ROW, X, Y, ask
from fake_server import Fake, kept
from shiva_container import Batch, Container, Tensor, TensorError, link, model, wire, workers
from shiva_container.arena import Arena, Loan
from shiva_container.batches import Batches
from shiva_container.session import Delivery


def until(test: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + 20
    while not test():
        assert time.monotonic() < end, what
        time.sleep(0.002)


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that have read messages, in order."""
    names: list[str] = []
    take = link.Link._take

    def seen(*args: Any) -> None:
        names.append(threading.current_thread().name)
        take(*args)

    monkeypatch.setattr(link.Link, "_take", seen)
    return names


def test_the_thread_of_a_quick_function_reads_by_itself(readers: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "QUICK_SECONDS", 10.0)  # whatever else the machine does
    monkeypatch.setattr(workers, "LATE_SECONDS", 10.0)
    threads = set()

    def function(x: Any) -> Any:
        threads.add(threading.current_thread().name)
        return x

    quick = model(name="quick", inputs=[X], outputs=[Y])(function)
    quick.warmup(lambda: threads.add(threading.current_thread().name))
    # The I/O thread, too, reads when a heartbeat is due: none is while readers are counted.
    fake = Fake(heartbeat_ms=60_000, dead_after_ms=60_000, beat=False)
    with fake, Container(quick, servers=fake.endpoint) as container:
        peer, _ = fake.hello()
        for _ in range(workers.QUICK_CALLS):
            fake.result(ask(fake, peer))
        assert set(readers) == {"shiva-io"}
        one, poller = container._links[0], container._poller
        until(lambda: one.led and one.number not in poller._followed, "the thread did not take the lead")
        readers.clear()
        for _ in range(5):
            fake.result(ask(fake, peer))
        assert set(readers) == {"shiva-quick-0"}
        assert threads == {"shiva-quick-0"}, "and everything is called in one thread"
        assert one.session is not None
        one.session._heartbeat = 0.05
        poller.wake()
        fake.wait_for(b"heartbeat", len(fake.seen(b"heartbeat")) + 3)
        fake.goodbye(peer, reconnect=False)
        assert container.wait(20), "a goodbye that it has read itself is obeyed"


def test_a_call_that_takes_long_after_all_is_noticed(readers: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """During a call heartbeats go out, the next batch arrives, lost connections are replaced."""
    monkeypatch.setattr(workers, "QUICK_SECONDS", 10.0)
    monkeypatch.setattr(link, "FIRST_RETRY_SECONDS", 0.01)
    inside, leave = threading.Event(), threading.Event()

    @model(name="fickle", inputs=[X], outputs=[Y])
    def fickle(x: Any) -> Any:
        if len(x) == 2:
            inside.set()
            leave.wait(60)
        return x

    with Fake(kept(), heartbeat_ms=20) as fake, Container(fickle, servers=fake.endpoint) as container:
        peer, _ = fake.hello()
        for _ in range(workers.QUICK_CALLS):
            fake.result(ask(fake, peer))
        until(lambda: container._links[0].led, "the thread did not take the lead")
        held = ask(fake, peer, 2)
        assert inside.wait(20)
        beats = len(fake.seen(b"heartbeat"))
        after = ask(fake, peer)
        session = container._links[0].session
        assert session is not None
        until(lambda: session.pending == 2, "nobody reads")
        assert readers[-1] == "shiva-io"
        fake.wait_for(b"heartbeat", beats + 5)
        leave.set()
        fake.result(held)
        fake.result(after)
        for _ in range(workers.QUICK_CALLS):
            fake.result(ask(fake, peer))
        until(lambda: container._links[0].led, "it is quick again")
        inside.clear()
        leave.clear()
        ask(fake, peer, 2)
        assert inside.wait(20)
        fake.goodbye(peer, reconnect=True)
        fake.close()
        with Fake(fake.endpoint) as second:
            second.hello()
            leave.set()
            second.result(ask(second, second.hello()[0]))


def test_a_slow_function_leaves_reading_to_the_other_thread(readers: list[str]) -> None:
    @model(name="slow", inputs=[X], outputs=[Y])
    def slow(x: Any) -> Any:
        time.sleep(2 * workers.QUICK_SECONDS)
        return x

    with Fake() as fake, Container(slow, servers=fake.endpoint):
        peer, _ = fake.hello()
        for _ in range(10):
            fake.result(ask(fake, peer))
    assert set(readers) == {"shiva-io"}


def test_connections_come_and_go_while_the_function_is_quick() -> None:
    @model(name="quick", inputs=[X], outputs=[Y])
    def quick(x: Any) -> Any:
        return x

    with Fake() as one, Fake() as two, Container(quick, servers=[one.endpoint, two.endpoint]):
        for n in range(1, 6):
            for fake in (one, two):
                peer, _ = fake.hello(n)
                for _ in range(20):
                    fake.result(ask(fake, peer))
            one.goodbye(one.hello(n)[0], reconnect=True)
            two.goodbye(two.hello(n)[0], reconnect=True)


def test_an_idle_container_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    @model(name="quick", inputs=[X], outputs=[Y])
    def quick(x: Any) -> Any:
        return x

    with Fake(heartbeat_ms=3_600_000, dead_after_ms=3_600_000) as fake, Container(quick, servers=fake.endpoint) as c:
        peer, _ = fake.hello()
        for _ in range(20):
            fake.result(ask(fake, peer))
        turns = 0
        turn = c._turn

        def counted() -> None:
            nonlocal turns
            turns += 1
            turn()

        until(lambda: not c._runners[0]._worker._watched, "it is watched for ever")  # type: ignore[attr-defined]
        monkeypatch.setattr(c, "_turn", counted)
        time.sleep(0.3)
        assert turns <= 2


HEADS = [
    b'{"rows":1,"inputs":[{"name":"x","datatype":"FP32","shape":[1,2]}],"timeout_ms":%s}',
    b'{"rows":1,"inputs":[{"name":"x","datatype":"FP32","shape":[1,2]}],"timeout_ms":%s,"requests":[1]}',
    b'{"rows":1,"inputs":[{"name":"x","datatype":"FP32","shape":[1,2]}],"parameters":[{"timeout_ms":%s}]}',
    b'{"rows":1,"inputs":[{"name":"x","datatype":"FP32","shape":[1,2]}],"parameters":[{"a":1,"timeout_ms":%s}]}',
    b'{"timeout_ms":%s,"rows":1,"inputs":[{"name":"x","datatype":"FP32","shape":[1,2]}]}',
    b'{"rows":1,"a":{"b":2,"timeout_ms":%s},"inputs":[{"name":"x","datatype":"FP32","shape":[1,2]}]}',
    b'{"rows":1,"inputs":[{"name":"x","datatype":"FP32","shape":[1,2]}],"a":{"b":2,"timeout_ms":%s}}',
    b'{"rows":1,"inputs":[{"name":"x","datatype":"FP32","shape":[1,2]}],"timeout_ms":%s,"priority":[5]}',
]
TIMED = (0, 1, 4, 7)
"""The headers in which it is the header's own."""


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("seen", [True, False])
def test_a_header_that_was_seen_before_means_the_same_again(head: bytes, seen: bool) -> None:
    @model(name="m", inputs=[X], outputs=[Y])
    def function(x: Any, batch: Batch) -> Any:
        return x

    batches = Batches(function)

    def read(text: bytes) -> tuple[Any, Batch]:
        (array,), batch, _ = batches.read(Delivery(b"12345678", text, [ROW], 100.0))
        return array, batch

    if seen:
        for other in HEADS:
            for number in (b"7", b"8.5"):
                read(other % number)
    timed = HEADS.index(head) in TIMED
    for number, seconds in ((b"7", 0.007), (b"1500.25", 1.50025), (b"1e3", 1.0)):
        array, batch = read(head % number)
        assert array.tolist() == [[1, 2]]
        assert not array.flags.writeable
        assert batch.deadline == (pytest.approx(100 + seconds) if timed else None)
        expected = {"timeout_ms": float(number)} if b"parameters" in head else {}
        got = dict(batch.requests[0].parameters)
        got.pop("a", None)
        assert got == expected
        batch.requests[0].parameters["mine"] = 1  # type: ignore[index]
    with pytest.raises(ValueError, match=r"not JSON|timeout"):
        read(head % b"1.2.3")


class Places(Arena):
    """Shared memory that only knows the places."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, ...]] = []

    def input(self, at: tuple[int, ...], *, lend: bool, echo: bytes) -> tuple[memoryview, Loan]:
        self.seen.append(at)
        data = memoryview(np.frombuffer(ROW, np.uint8))
        return data, Loan(weakref.ref(data.obj), 0, 0, ())


HEAD_X = b'{"name":"x","datatype":"FP32","shape":[1,2]%s}'
HEAD_Z = b'{"name":"z","datatype":"FP32","shape":[1,2]%s}'
PLACED: list[tuple[bytes, list[int], list[bytes]]] = [  # places of x and z, and the frames
    (b'{"rows":1,"inputs":[' + HEAD_X + b"," + HEAD_Z + b"]}", [0, 1], [b"", b""]),
    (b'{"rows":1,"inputs":[' + HEAD_Z + b"," + HEAD_X + b"]}", [1, 0], [b"", b""]),
    (b'{"rows":1,"inputs":[' + HEAD_X + b"," + HEAD_Z % b"" + b"]}", [0], [b"", ROW]),
    (b'{"rows":1,"inputs":[' + HEAD_X % b"" + b"," + HEAD_Z + b'],"timeout_ms":7}', [0], [ROW, b""]),
    (b'{"rows":1,"a":{"b":1%s},"inputs":[' + HEAD_X % b"" + b"," + HEAD_Z + b"]}", [1], [ROW, b""]),
    (b'{"rows":1,"inputs":[' + HEAD_X + b"," + HEAD_Z + b'],"parameters":[{"k":1,"at":[9]}]}', [0, 1], [b"", b""]),
]


@pytest.mark.parametrize("end", [b"", b',"priority":[5]', b',"requests":[1],"priority":[9]'])
def test_a_header_is_parsed_once_whatever_its_timeout(end: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers name a timeout and a priority in every batch; most timeouts differ."""
    batches = Batches(model(name="m", inputs=[X, Tensor("z", "FP32", [-1, 2])], outputs=[Y])(lambda x, z, batch: x))
    parsed: list[bytes] = []
    parse = wire.parse_batch

    def counted(header: bytes) -> wire.BatchHeader:
        parsed.append(header)
        return parse(header)

    monkeypatch.setattr(wire, "parse_batch", counted)
    for i in range(20):
        inputs = HEAD_X % (b',"at":[1,%d,8]' % i) + b"," + HEAD_Z % b""
        head = b'{"rows":1,"inputs":[' + inputs + b'],"timeout_ms":%d.%d' % (29999 - i, i) + end + b"}"
        _, batch, _ = batches.read(Delivery(b"12345678", head, [b"", ROW], 100.0), Places())
        assert batch.deadline == pytest.approx(100 + float(b"%d.%d" % (29999 - i, i)) / 1000)
    assert len(parsed) == 1, parsed


@pytest.mark.parametrize("seen", [True, False])
def test_places_are_of_the_header_that_has_them(seen: bool) -> None:
    function = model(name="m", inputs=[X, Tensor("z", "FP32", [-1, 2])], outputs=[Y])(lambda x, z: x)
    batches = Batches(function)
    rng = random.Random(1)
    for _ in range(10):
        for head, order, frames in PLACED:
            if not seen:
                batches = Batches(function)
            count = head.count(b"%s")
            ats = [tuple(rng.randrange(1 << 40) for _ in range(3 * rng.randint(1, 3))) for _ in range(count)]
            text = head % tuple(b',"at":[%s]' % b",".join(b"%d" % n for n in at) for at in ats)
            arena = Places()
            batches.read(Delivery(b"12345678", text, frames, 0.0), arena)
            assert arena.seen == [ats[i] for i in order], text
            broken = head % tuple(b',"at":[' for _ in range(count))
            with pytest.raises(TensorError, match="not JSON"):
                batches.read(Delivery(b"12345678", broken, frames, 0.0), arena)


def test_headers_are_not_remembered_without_end() -> None:
    @model(name="m", batched=True, inputs=[X], outputs=[Y])
    def function(x: Any) -> Any:
        return x

    batches = Batches(function)
    for rows in range(1, 400):
        head = b'{"rows":%d,"inputs":[{"name":"x","datatype":"FP32","shape":[%d,2]}]}' % (rows, rows)
        (array,), batch, _ = batches.read(Delivery(b"12345678", head, [ROW * rows], 0.0))
        assert array is not None
        assert array.shape == (rows, 2)
        batches.write(b"12345678", [np.asarray(array)], batch)
    assert len(batches._plans) <= 256
    assert len(batches._headers) <= 256

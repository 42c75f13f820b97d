"""Tensors in shared memory: where they are, what is refused, when memory is free again."""

from __future__ import annotations

import fcntl
import gc
import itertools
import json
import mmap
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fake_server import Fake
from shiva_container import Container, Tensor, TensorError, model
from shiva_container.arena import MIN_SHARED, Arena
from shiva_container.batches import _TRUSTED_CALLS
from shiva_container.memory import Memory

WIDE = [Tensor("x", "FP32", [-1, 16384])]
ROW = 16384 * 4
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Segment:
    """A segment as a server offers it."""

    def __init__(self, number: int, use: str, size: int = 1 << 20, seals: int = SEALS) -> None:
        self.file = os.memfd_create("segment", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.ftruncate(self.file, size)
        self.map = mmap.mmap(self.file, size)
        self.map[:16] = token = os.urandom(16)
        fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, seals)
        path = f"/proc/{os.getpid()}/fd/{self.file}"
        self.offer = {"segment": number, "use": use, "path": path, "bytes": size, "token": token.hex()}

    def put(self, offset: int, array: Any) -> None:
        data = np.asarray(array, "<f4").tobytes()
        self.map[offset : offset + len(data)] = data

    def word(self, at: list[int]) -> int:
        return int.from_bytes(self.map[at[1] - 64 : at[1] - 60], "little")

    def close(self) -> None:
        os.close(self.file)


@pytest.fixture
def inputs() -> Iterator[Segment]:
    one = Segment(1, "inputs")
    yield one
    one.close()


@pytest.fixture
def outputs() -> Iterator[Segment]:
    one = Segment(2, "outputs", 4096 + 2 * (64 + ROW))
    yield one
    one.close()


def send(fake: Fake, segment: Segment | None = None, **message: object) -> None:
    peer, _ = fake.hello()
    fake.send(peer, b"arena", json.dumps(segment.offer if segment else message).encode())


def reply(fake: Fake, count: int = 1) -> Any:
    return json.loads(fake.wait_for(b"arena", count)[1][1])


def shared(fake: Fake, rows: int, at: Any, frame: bytes = b"", **more: object) -> tuple[dict[str, Any], list[bytes]]:
    peer, _ = fake.hello()
    head = {"name": "x", "datatype": "FP32", "shape": [rows, 16384], "at": at}
    batch_id = os.urandom(8)
    header = json.dumps({"rows": rows, "inputs": [head], **more}).encode()
    fake.send(peer, b"batch", batch_id, header, frame)
    return fake.result(batch_id)


def first(value: float) -> Any:
    return np.full((1, 16384), value, "<f4")


def test_inputs_are_views_once_the_function_is_known_to_let_go(inputs: Segment) -> None:
    seen = []

    @model(name="m", inputs=WIDE, outputs=[Tensor("y", "FP32", [-1])])
    def function(x: Any) -> Any:
        assert not x.flags.writeable
        before = float(x[0, 0])
        inputs.put(8192, [before + 100])
        seen.append((before, float(x[0, 0])))
        return x[:, 0]

    with Fake(arena=inputs.offer) as fake, Container(function, servers=fake.endpoint):
        assert fake.hello()[1]["arena"] is True
        assert reply(fake) == {"segment": 1}
        for n in range(_TRUSTED_CALLS + 2):
            inputs.put(8192, first(n))
            shared(fake, 1, [1, 8192, ROW])
        copied, lent = seen[:_TRUSTED_CALLS], seen[_TRUSTED_CALLS:]
        assert all(before == after for before, after in copied)
        assert all(before + 100 == after for before, after in lent)


def test_pieces_are_put_together(inputs: Segment) -> None:
    model_ = model(name="m", inputs=WIDE, outputs=[Tensor("y", "FP32", [-1])])(lambda x: x.sum(axis=1))
    with Fake(arena=inputs.offer) as fake, Container(model_, servers=fake.endpoint):
        for n in range(20):
            inputs.put(4096, first(n))
            inputs.put(500_000, first(1))
            head, (frame,) = shared(fake, 2, [1, 4096, ROW, 1, 500_000, ROW], requests=[1, 1])
            assert "error" not in head
            assert np.frombuffer(frame, "<f4").tolist() == [16384 * n, 16384]


def test_a_function_that_keeps_its_input_gets_copies(inputs: Segment, caplog: pytest.LogCaptureFixture) -> None:
    kept: list[Any] = []

    @model(name="m", inputs=WIDE, outputs=[Tensor("y", "FP32", [-1])])
    def function(x: Any) -> Any:
        if keeps:
            kept.append(x[:, :4])
        return x[:, 0]

    keeps = True
    with Fake(arena=inputs.offer) as fake, Container(function, servers=fake.endpoint):
        for n in range(_TRUSTED_CALLS + 3):
            inputs.put(8192, first(n))
            shared(fake, 1, [1, 8192, ROW])
        assert [float(x[0, 0]) for x in kept] == list(range(_TRUSTED_CALLS + 3)), "it never gets a view"
        assert "keeps an input" not in caplog.text
        keeps = False
        for _ in range(_TRUSTED_CALLS):
            shared(fake, 1, [1, 8192, ROW])
        keeps = True
        kept.clear()
        for n in range(3):
            inputs.put(8192, first(n))
            shared(fake, 1, [1, 8192, ROW])
        assert [float(x[0, 0]) for x in kept[1:]] == [1, 2]
    assert "keeps an input after its call" in caplog.text


def test_outputs_lie_in_the_session_s_own_segment(inputs: Segment, outputs: Segment) -> None:
    double = model(name="m", inputs=WIDE, outputs=[Tensor("y", "FP32", [-1, 16384])])(lambda x: 2 * x)
    with Fake(arena=inputs.offer) as fake, Container(double, servers=fake.endpoint):
        inputs.put(8192, first(3))
        head, (frame,) = shared(fake, 1, [1, 8192, ROW])
        assert frame == first(6).tobytes()
        assert "at" not in head["outputs"][0]
        send(fake, outputs)
        assert reply(fake, 2) == {"segment": 2}
        places = []
        for n in range(2):
            inputs.put(8192, first(n))
            head, (frame,) = shared(fake, 1, [1, 8192, ROW])
            at = head["outputs"][0]["at"]
            assert (at[0], at[2], frame) == (2, ROW, b"")
            assert at[1] % 64 == 0
            assert at[1] >= 4096 + 64
            assert outputs.word(at) == 1
            assert outputs.map[at[1] : at[1] + ROW] == first(2 * n).tobytes()
            places.append(at)
        assert abs(places[0][1] - places[1][1]) >= ROW + 64
        head, (frame,) = shared(fake, 1, [1, 8192, ROW])
        assert frame == first(2).tobytes(), "nothing is free"
        outputs.map[places[1][1] - 64] = 0
        head, (frame,) = shared(fake, 1, [1, 8192, ROW])
        assert head["outputs"][0]["at"] == places[1]
        assert outputs.map[places[0][1] : places[0][1] + ROW] == bytes(ROW), "the other one was not touched"
        for at in places:
            outputs.map[at[1] - 64] = 0
        head, _ = shared(fake, 2, [1, 8192, ROW, 1, 8192, ROW], requests=[1, 1])
        assert head["outputs"][0]["at"] == [2, 4096 + 64, 2 * ROW], "the space of two is that of a large one"


def test_an_output_that_is_an_input_stays_where_it_is(inputs: Segment, outputs: Segment) -> None:
    """Or a part of one, without gaps; but not an array that the function has kept."""
    names = ["same", "part", "gaps", "tail"]
    kept: list[Any] = []

    @model(name="m", inputs=WIDE, outputs=[Tensor(name, "FP32", [-1, -1]) for name in names], batched=True)
    def function(x: Any) -> Any:
        if keeps:
            kept.append(x)
        return x, x[:, 4096:12288], x.reshape(x.shape[0], -1, 2)[:, :, 0], x[:, -100:]

    keeps = False
    with Fake(arena=inputs.offer) as fake, Container(function, servers=fake.endpoint):
        for n in range(_TRUSTED_CALLS):
            inputs.put(8192, first(n))
            head, frames = shared(fake, 1, [1, 8192, ROW])
            assert not any("at" in one for one in head["outputs"]), "it was a copy"
            assert frames[0] == first(n).tobytes()
        send(fake, outputs)
        reply(fake, 2)
        head, frames = shared(fake, 1, [1, 8192, ROW])
        same, part, gaps, tail = head["outputs"]
        assert same["at"] == [1, 8192, ROW]
        assert part["at"] == [1, 8192 + 4096 * 4, 8192 * 4]
        assert gaps["at"] == [2, 4096 + 64, ROW // 2]
        assert "at" not in tail
        assert [len(frame) for frame in frames] == [0, 0, 0, 400]
        head, _ = shared(fake, 2, [1, 8192, ROW, 1, 200_000, ROW], requests=[1, 1])
        assert head["outputs"][0].get("at", [2])[0] == 2, "it was gathered"
        keeps = True
        shared(fake, 1, [1, 8192, ROW])
        head, _ = shared(fake, 1, [1, 8192, ROW])
        assert head["outputs"][0].get("at", [2])[0] == 2, "it is copied for a function that keeps it"


def test_what_is_gathered_for_a_function_that_passes_it_on_is_not_copied_again(inputs: Segment) -> None:
    """It is the output where it was gathered, once. Otherwise its memory is free again."""
    large = Segment(3, "outputs", 4096 + 4 * (64 + 2 * ROW))
    gathered: list[int] = []
    numbers = itertools.count(1)

    @model(name="m", inputs=WIDE, outputs=[Tensor(name, "FP32", [-1, -1]) for name in "ab"], batched=True)
    def function(x: Any) -> Any:
        gathered.append(large.map.find(x.tobytes()))
        return answer(x)

    def answer(x: Any) -> Any:
        return first_output(x), second_output(x)

    def two() -> Any:
        for offset in (8192, 200_000):
            inputs.put(offset, first(next(numbers)))
        head, _ = shared(fake, 2, [1, 8192, ROW, 1, 200_000, ROW], requests=[1, 1])
        return [one.get("at") for one in head.get("outputs", [])], gathered[-1]

    def used() -> list[int]:
        """The regions whose words say that the server has them; the server then frees them."""
        taken = [at for at in range(4096 + 64, len(large.map), 64 + 2 * ROW) if large.word([3, at])]
        for at in taken:
            large.map[at - 64] = 0
        return taken

    def same(x: Any) -> Any:
        return x

    def little(x: Any) -> Any:
        return x[:, :1]

    first_output, second_output = same, little
    with Fake(arena=inputs.offer) as fake, Container(function, servers=fake.endpoint):
        for _ in range(_TRUSTED_CALLS):
            shared(fake, 1, [1, 8192, ROW])
        send(fake, large)
        reply(fake, 2)
        shared(fake, 1, [1, 8192, ROW])
        (a, b), where = two()
        assert (a, b) == ([3, where, 2 * ROW], None)
        assert used() == [where]
        second_output = same
        (a, b), where = two()
        assert a == [3, where, 2 * ROW]
        assert large.map[a[1] : a[1] + 2 * ROW] == large.map[b[1] : b[1] + 2 * ROW]
        assert used() == sorted([a[1], b[1]])
        second_output = little
        for changed in (lambda x: x[1:], lambda x: 1 / 0, lambda x: 2 * x):
            first_output = changed
            places, where = two()
            assert where > 0
            assert used() == [at[1] for at in places if at]
            assert [3, where] not in [at[:2] for at in places if at]
        assert two()[1] == -1, "it did not answer with its input"
    large.close()


def test_what_is_not_sent_is_free_again(outputs: Segment) -> None:
    """An output that fails after another was placed, and a result that is too large."""
    two = [Tensor("a", "FP32", [-1, 16384]), Tensor("b", "BYTES", [-1])]

    @model(name="m", inputs=[Tensor("x", "FP32", [-1, 1])], outputs=two)
    def function(x: Any) -> Any:
        wrong = [object(), bytes(200_000), b"right"][int(x[0, 0])]
        return first(1), np.array([wrong], object)

    with Fake(limit=100_000) as fake, Container(function, servers=fake.endpoint):
        peer, _ = fake.hello()
        fake.result(fake.batch(peer, 1, [("x", "FP32", [1, 1], np.float32(2).tobytes())]))
        send(fake, outputs)
        reply(fake)
        for n in (0, 1) * 4:
            head, _ = fake.result(fake.batch(peer, 1, [("x", "FP32", [1, 1], np.float32(n).tobytes())]))
            assert "error" in head
        head, _ = fake.result(fake.batch(peer, 1, [("x", "FP32", [1, 1], np.float32(2).tobytes())]))
        assert head["outputs"][0]["at"] == [2, 4096 + 64, ROW]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"path": "/proc/1/fd/99999"}, "/proc/1/fd/99999"),
        ({"path": "/dev/null"}, "has 0 bytes"),
        ({"path": None}, "expected its use, path and bytes"),
        ({"path": "a\0b"}, "null"),
        ({"bytes": 1 << 19}, f"has {1 << 20} bytes, {1 << 19} were offered"),
        ({"bytes": 1 << 70}, "were offered"),
        ({"bytes": -1}, "were offered"),
        ({"bytes": "many"}, "expected its use, path and bytes"),
        ({"token": "00" * 16}, "its first bytes are not the token"),
        ({"token": "x"}, "hexadecimal"),
        ({"use": "both"}, "expected its use"),
        ({"use": ["inputs"]}, "expected its use"),
    ],
)
def test_a_wrong_offer_is_answered_with_the_reason(
    inputs: Segment, change: Any, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    double = model(name="m", inputs=WIDE, outputs=WIDE)(lambda x: x)
    with Fake(arena={**inputs.offer, **change}) as fake, Container(double, servers=fake.endpoint):
        answer = reply(fake)
        assert answer["segment"] == 1
        assert text in answer["error"]
        assert text in caplog.text
        peer, _ = fake.hello()
        _, (frame,) = fake.result(fake.batch(peer, 1, [("x", "FP32", [1, 16384], first(1).tobytes())]))
        assert frame == first(1).tobytes()


def test_a_file_that_may_be_truncated_is_refused() -> None:
    loose = Segment(1, "inputs", seals=0)
    with Fake(arena=loose.offer) as fake, Container(
        model(name="m", inputs=WIDE, outputs=WIDE)(lambda x: x), servers=fake.endpoint
    ):
        assert "not sealed" in reply(fake)["error"]
    loose.close()


@pytest.mark.parametrize(
    ("at", "frame", "text"),
    [
        ([9, 8192, ROW], b"", "segment 9 of shared memory was not offered"),
        ([1, (1 << 20) - 4, ROW], b"", "are not in segment 1"),
        ([1, -4096, ROW], b"", "are not in segment 1"),
        ([1, 8192, -ROW], b"", "are not in segment 1"),
        ([1, 1 << 63, ROW], b"", "are not in segment 1"),
        ([1, 8192, ROW - 4], b"", "is 65536 bytes, the frame has 65532"),
        ([1, 8192], b"", "not a tensor's name"),
        (["1", 8192, ROW], b"", "not a tensor's name"),
        ({"1": 2}, b"", "not a tensor's name"),
        ([1, 8192, ROW], b"x", "has a frame, too"),
        ([1, 0, 1 << 20] * 100, b"", "the frame has 104857600"),
    ],
)
def test_a_wrong_place_fails_its_batch(inputs: Segment, at: Any, frame: bytes, text: str) -> None:
    echo = model(name="m", inputs=WIDE, outputs=WIDE)(lambda x: x)
    with Fake(arena=inputs.offer) as fake, Container(echo, servers=fake.endpoint):
        assert text in shared(fake, 1, at, frame)[0]["error"]
        assert "error" not in shared(fake, 1, [1, 8192, ROW])[0], "the session goes on"


def test_off_is_off(inputs: Segment) -> None:
    echo = model(name="m", inputs=WIDE, outputs=WIDE)(lambda x: x)
    with Fake(arena=inputs.offer) as fake, Container(echo, servers=fake.endpoint, arena=False):
        assert "arena" not in fake.hello()[1]
        send(fake, inputs)
        assert "shared memory is not in use" in shared(fake, 1, [1, 8192, ROW])[0]["error"]
        assert not fake.seen(b"arena")


def test_a_segment_is_unmapped_when_its_last_batch_is_answered(inputs: Segment, outputs: Segment) -> None:
    arena = Arena()
    assert arena.take(inputs.offer, ()) == [{"segment": 1}]
    assert arena.take(outputs.offer, ()) == [{"segment": 2}]
    assert arena.take({"unmap": 1}, {b"a", b"b"}) == []
    assert arena.input((1, 8192, 4), lend=True)[0] == bytes(4)
    assert arena.answered(b"a") == []
    assert arena.answered(b"b") == [{"unmapped": 1}]
    with pytest.raises(TensorError, match="not offered"):
        arena.input((1, 8192, 4), lend=True)
    region = arena.output(b"c", ROW)
    assert region is not None
    assert region.at[0] == 2
    larger = Segment(3, "outputs")
    assert arena.take(larger.offer, {b"c"}) == [{"segment": 3}]
    assert (arena.output(b"d", ROW) or region).at[0] == 3
    assert arena.answered(b"d") == []
    assert arena.answered(b"c") == [{"unmapped": 2}]
    assert arena.take({"unmap": 1}, ()) == [], "there is none"
    assert arena.take({"unmap": 3}, ()) == [{"unmapped": 3}]
    larger.close()


def test_nothing_stays_mapped_after_the_session(inputs: Segment) -> None:
    echo = model(name="m", inputs=WIDE, outputs=WIDE)(lambda x: x)

    def mappings() -> int:
        with open("/proc/self/maps") as f:
            return sum("memfd:segment" in line for line in f)

    gc.collect()  # what earlier tests have left mapped would go meanwhile
    before = mappings()
    with Fake(arena=inputs.offer) as fake, Container(echo, servers=fake.endpoint):
        for _ in range(20):
            shared(fake, 1, [1, 8192, ROW])
        assert mappings() == before + 1
        fake.goodbye(fake.hello()[0], reconnect=True)
        fake.hello(2)
        fake.wait_for(b"arena", 2)
        until = time.monotonic() + 20
        while mappings() != before + 1 and time.monotonic() < until:
            time.sleep(0.01)
        assert mappings() == before + 1
    until = time.monotonic() + 20
    while mappings() != before and time.monotonic() < until:
        time.sleep(0.01)
    assert mappings() == before


def test_messages_of_any_structure_are_obeyed_or_refused(inputs: Segment) -> None:
    rng = random.Random(time.time())
    values = [None, True, -1, 0, 1, 1.5, 10**30, "", "inputs", "outputs", "/dev/zero", [], {}, "\ud800", [1] * 3]
    until = time.monotonic() + 1
    arena = Arena()
    while time.monotonic() < until:
        message: dict[str, Any] = {**inputs.offer, "unmap": 1} if rng.random() < 0.2 else dict(inputs.offer)
        for _ in range(rng.randint(1, 3)):
            key = rng.choice(list(inputs.offer))
            if rng.random() < 0.2:
                message.pop(key, None)
            else:
                message[key] = rng.choice(values)
        for answer in arena.take(message, {b"1"} if rng.random() < 0.5 else ()):
            assert json.loads(json.dumps(answer)) == answer


def test_the_allocator_never_gives_the_same_bytes_twice(outputs: Segment) -> None:
    """Sizes and the order of returns are random; each region keeps what was written to it."""
    rng = random.Random(time.time())
    large = Segment(7, "outputs", 1 << 20)
    arena = Arena()
    arena.take(large.offer, ())
    live: dict[bytes, Any] = {}
    given = refused = 0
    for n in range(2000):
        key = n.to_bytes(8, "little")
        region = arena.output(key, rng.randint(MIN_SHARED, 300_000))
        if region is None:
            refused += 1
        else:
            given += 1
            region.data[:] = n % 251
            live[key] = (region, n % 251)
            arena.answered(key)
        while live and (region is None or rng.random() < 0.4):
            key = rng.choice(list(live))
            one, value = live.pop(key)
            assert (one.data == value).all()
            large.map[one.at[1] - 64] = 0
            region = one
    assert given > 500
    assert refused > 10
    large.close()


def test_memory_comes_back_when_nobody_refers_to_it() -> None:
    memory = Memory()
    one = memory.take(1 << 20)
    one[:1] = b"a"
    array = np.ndarray((1 << 18,), "<f4", one.toreadonly())[::2]
    del one
    two = memory.take(1 << 20)
    assert len(two) == 1 << 20
    two[:1] = b"b"
    assert array.tobytes()[:1] == b"a", "it is in use"
    place = array.ctypes.data
    del array
    assert np.frombuffer(memory.take(700_000), "u1").ctypes.data == place, "and now it is not"
    # Batches of all sizes use the memory of the largest one.
    large = np.frombuffer(memory.take(40 << 20), "u1").ctypes.data
    assert all(np.frombuffer(memory.take(size << 20), "u1").ctypes.data == large for size in (8, 24, 16, 40))
    assert np.frombuffer(memory.take(4 << 20), "u1").ctypes.data != large, "but a small one does not hold it"

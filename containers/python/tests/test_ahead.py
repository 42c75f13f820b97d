"""Pictures of the next batch are decoded while the function computes, and those of no other."""

from __future__ import annotations

import concurrent.futures
import struct
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from fake_server import Fake
from shiva_container import Batch, Container, Image, Tensor, ahead, images, model
from test_pictures import HEIGHT, WIDTH, file, scene
from test_workers import until

GOOD = file(scene(), "PNG")


def elements(*every: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(one)) + one for one in every)


class Held:
    """A model of pictures that computes its first batch until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
        self.inside, self.leave = threading.Event(), threading.Event()
        self.decoded: list[int] = []
        decode = images.decode
        monkeypatch.setattr(
            images, "decode", lambda one, *more: (self.decoded.append(len(one)), decode(one, *more))[1]
        )

        def function(image: Any, weight: Any) -> Any:
            self.inside.set()
            assert self.leave.wait(60)
            return image.reshape(len(image), -1).mean(axis=1, dtype=np.float32) * weight

        self.model = model(
            name="held",
            inputs=[Image("image", height=HEIGHT, width=WIDTH), Tensor("weight", "FP32", [-1])],
            outputs=[Tensor("mean", "FP32", [-1])],
            batched=True,
            **more,
        )(function)


def send(fake: Fake, peer: bytes, *every: bytes) -> bytes:
    weights = np.arange(1, 1 + len(every), dtype="f4").tobytes()
    inputs = [("image", "BYTES", [len(every)], elements(*every)), ("weight", "FP32", [len(every)], weights)]
    return fake.batch(peer, len(every), inputs)


def test_the_next_batch_is_decoded_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    mean = np.asarray(scene()).mean()
    with Fake(images=True) as fake, Container(held.model, servers=fake.endpoint) as container:
        peer, _ = fake.hello()
        first = send(fake, peer, GOOD)
        assert held.inside.wait(20)
        second, third = send(fake, peer, GOOD, b"bad", GOOD), send(fake, peer, GOOD)
        until(lambda: len(held.decoded) == 3, "the second batch is not decoded")
        session = container._links[0].session
        assert session is not None
        until(lambda: session.pending == 3, "the third batch has not come")
        assert len(held.decoded) == 3, "one batch at most is decoded ahead"
        held.leave.set()
        for batch, errors in ((first, 0), (second, 1), (third, 0)):
            header, frames = fake.result(batch)
            assert header["prepared_ms"] > 0
            assert len(header.get("errors", [])) == errors
            got = np.frombuffer(frames[0], "f4")
            for row in {0, len(got) - 1}:
                assert got[row] == pytest.approx(mean * (1 + row), rel=1e-4)


def test_only_who_decodes_ahead_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch, concurrency=2)
    held.leave.set()
    with Fake(images=True) as fake, Container(held.model, servers=fake.endpoint):
        peer, _ = fake.hello()
        header, _ = fake.result(send(fake, peer, GOOD))
        assert "prepared_ms" not in header


def test_what_fails_ahead_fails_its_own_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    with Fake(images=True) as fake, Container(held.model, servers=fake.endpoint):
        peer, _ = fake.hello()
        first = send(fake, peer, GOOD)
        assert held.inside.wait(20)
        broken = fake.batch(peer, 1, [("image", "BYTES", [1], elements(GOOD))])
        last = send(fake, peer, GOOD)
        held.leave.set()
        assert "error" not in fake.result(first)[0]
        assert '"weight" is missing' in fake.result(broken)[0]["error"]
        assert "error" not in fake.result(last)[0]


def test_what_has_not_begun_is_made_by_who_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads that decode may be busy with other models."""
    threads = []

    class Busy:
        def submit(self, call: Any) -> Any:
            return concurrent.futures.Future()

    def make() -> Any:
        threads.append(threading.get_ident())
        return "inputs", "batch", []

    monkeypatch.setattr(ahead, "threads", Busy)
    one = ahead.Ahead(make)
    one.begin()
    assert one.take()[:2] == ("inputs", "batch")
    assert threads == [threading.get_ident()]


def test_what_is_taken_belongs_to_the_function_alone() -> None:
    """Its memory may be lent: the server gets it back when nothing refers to it."""
    for _ in range(20):
        one = ahead.Ahead(lambda: (([np.zeros(8)], {}), Batch(1), []))
        one.begin()
        ready = one.take()
        array = weakref.ref(ready.inputs[0][0])  # type: ignore[arg-type]
        del ready
        assert array() is None

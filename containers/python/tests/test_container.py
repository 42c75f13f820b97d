"""The container as a whole, over real ZeroMQ sockets, against a server written from the protocol."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_server import Fake
from shiva_container import DATATYPES, Batch, Container, Feedback, Tensor, link, model
from shiva_container.runner import Runner

X = Tensor("x", "FP32", [-1, 2])
Y = Tensor("y", "FP32", [-1, 2])
ROW = np.array([[1, 2]], "<f4").tobytes()


def echo(**changes: Any) -> Any:
    return model(**{"name": "echo", "inputs": [X], "outputs": [Y], **changes})(lambda x: x)


def ask(fake: Fake, peer: bytes, rows: int = 1) -> bytes:
    return fake.batch(peer, rows, [("x", "FP32", [rows, 2], ROW * rows)])


def test_hello_says_all_that_was_declared() -> None:
    made = model(
        name="m",
        version="7",
        inputs=[X, Tensor("t", "BYTES", [-1])],
        outputs=[Y],
        max_batch=64,
        concurrency=2,
        platform="numpy",
        parameters={"k": [1]},
        user=True,
    )(lambda x, t: x)
    with Fake() as fake, Container(made, servers=fake.endpoint, instance="here") as container:
        _, hello = fake.hello()
        assert hello == {
            "protocol": 4,
            "model": "m",
            "version": "7",
            "platform": "numpy",
            "inputs": [
                {"name": "x", "datatype": "FP32", "shape": [-1, 2]},
                {"name": "t", "datatype": "BYTES", "shape": [-1]},
            ],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
            "batched": True,
            "max_batch": 64,
            "concurrency": 2,
            "slots": 3,
            "announce": True,
            "user": True,
            "parameters": {"k": [1]},
            "instance": "here",
        }
        assert container.wait_ready(20)


@pytest.mark.parametrize(("concurrency", "declared", "slots"), [(1, 1, None), (4, 4, 5), (100, 64, 64)])
def test_concurrency_is_declared(concurrency: int, declared: int, slots: int | None) -> None:
    with Fake() as fake, Container(echo(concurrency=concurrency), servers=fake.endpoint):
        hello = fake.hello()[1]
        assert (hello["concurrency"], hello.get("slots")) == (declared, slots)


def test_batches_of_several_requests() -> None:
    seen: list[Batch] = []

    @model(name="sum", inputs=[X], outputs=[Tensor("y", "FP32", [-1])])
    def total(x: Any, batch: Batch) -> Any:
        seen.append(batch)
        batch.fail(2, "third")
        return x.sum(axis=1)

    with Fake() as fake, Container(total, servers=fake.endpoint):
        peer, _ = fake.hello()
        data = np.arange(6, dtype="<f4").tobytes()
        header = {"requests": [2, 1], "parameters": [None, {"a": 1}], "priority": [0, 9], "timeout_ms": 60000.5}
        head, (y,) = fake.result(fake.batch(peer, 3, [("x", "FP32", [3, 2], data)], **header))
        assert head == {
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [3]}],
            "errors": [{"row": 2, "message": "third"}],
        }
        assert np.frombuffer(y, "<f4").tolist() == [1, 5, 9]
        (batch,) = seen
        assert [(r.rows, r.parameters, r.priority) for r in batch.requests] == [(2, {}, 0), (1, {"a": 1}, 9)]
        left = batch.time_left()
        assert left is not None
        assert 0 < left <= 60.0005


@pytest.mark.parametrize("size", [3, 30_000], ids=["small", "large"])
@pytest.mark.parametrize("name", list(DATATYPES))
def test_every_dtype_comes_back_as_it_went(name: str, size: int) -> None:
    tensor = [Tensor("x", name, [-1, -1])]
    made = model(name="echo", batched=True, inputs=tensor, outputs=tensor)(lambda x: x)
    if name == "BYTES":
        data = b"".join(n.to_bytes(4, "little") + bytes(n) for n in (i % 7 for i in range(2 * size)))
    elif name == "BOOL":
        data = bytes(i & 1 for i in range(2 * size))
    else:
        length = 2 * size * DATATYPES[name].itemsize
        data = np.random.default_rng(2).bytes(length)
    with Fake() as fake, Container(made, servers=fake.endpoint):
        peer, _ = fake.hello()
        head, (frame,) = fake.result(fake.batch(peer, 2, [("x", name, [2, size], data)]))
        assert head == {"outputs": [{"name": "x", "datatype": name, "shape": [2, size]}]}
        assert frame == data


@pytest.mark.parametrize(
    ("inputs", "header", "text"),
    [
        ([("z", "FP32", [1, 2], ROW)], {}, "input \"x\" is missing, got ['z']"),
        ([("x", "FP64", [1, 2], ROW * 2)], {}, 'input "x": declared FP32 [-1, 2] and 1 rows, got FP64 [1, 2]'),
        ([("x", "FP32", [2, 2], ROW * 2)], {}, "got FP32 [2, 2]"),
        ([("x", "FP32", [1, 3], ROW)], {}, "got FP32 [1, 3]"),
        ([("x", "FP32", [1, 2], b"")], {}, 'input "x": FP32 [1, 2] is 8 bytes, the frame has 0'),
        ([("x", "FP32", [1, 2], ROW)], {"requests": [2]}, "do not add up to 1 rows"),
        ([("x", "FP32", [1, 2], ROW)], {"rows": 0}, "rows must be a positive integer, got 0"),
        ([("x", "FP32", [1, 2], ROW)], {"inputs": []}, "1 tensor frames came"),
        ([("x", "FP32", [1, 2], ROW)], {"inputs": [{"name": "x"}]}, "not a tensor's name, datatype and shape"),
        ([("x", "FP32", [1, 2], ROW)], {"parameters": [{}, {}]}, "parameters of 1 requests expected"),
        ([("x", "FP32", [1, 2], ROW)], {"priority": ["high"]}, "priority must be a list of integers"),
    ],
)
def test_a_batch_that_does_not_fit_is_answered(inputs: Any, header: Any, text: str) -> None:
    with Fake() as fake, Container(echo(), servers=fake.endpoint):
        peer, _ = fake.hello()
        head, frames = fake.result(fake.batch(peer, 1, inputs, **header))
        assert text in head["error"]
        assert frames == []
        assert "error" not in fake.result(ask(fake, peer))[0], "the session goes on"


LESSON = (
    json.dumps(
        {
            "application": "app",
            "user": "anna",
            "rows": 1,
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2]}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2]}],
            "truth": [{"name": "y", "datatype": "BYTES", "shape": [1]}],
            "label": {"y": [3]},
            "loss": 0.5,
            "later": [],
        }
    ).encode(),
    ROW,
    ROW,
    b"\x02\0\0\0ab",
)


@pytest.mark.parametrize("kind", ["sync", "async hook", "async model"])
def test_feedback_comes_to_its_hook_and_its_error_costs_nothing(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    told: list[Feedback] = []
    made = echo()
    if kind == "async model":

        @model(name="waits", inputs=[X], outputs=[Y])
        async def waits(x: Any) -> Any:
            return x

        made = waits

    def learn(feedback: Feedback) -> None:
        told.append(feedback)
        if len(told) == 1:
            raise SystemExit(3)

    async def learn_later(feedback: Feedback) -> None:
        learn(feedback)

    made.feedback(learn if kind == "sync" else learn_later)
    with Fake() as fake, Container(made, servers=fake.endpoint):
        peer, hello = fake.hello()
        assert hello["feedback"] is True
        fake.send(peer, b"feedback", *LESSON)
        fake.send(peer, b"feedback", b"[]")
        fake.send(peer, b"feedback", *LESSON[:2])
        fake.send(peer, b"feedback")
        fake.send(peer, b"feedback", *LESSON)
        assert "error" not in fake.result(ask(fake, peer))[0], "the session goes on"
        until = time.monotonic() + 20
        while len(told) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        assert len(told) == 2
        one = told[1]
        assert (one.application, one.user, one.rows, one.label, one.loss) == ("app", "anna", 1, {"y": [3]}, 0.5)
        assert one.inputs["x"].tolist() == one.outputs["y"].tolist() == [[1, 2]]
        assert one.truth["y"].tolist() == [b"ab"]
    errors = [record.getMessage() for record in caplog.records if "feedback: " in record.getMessage()]
    assert len(errors) == 4
    assert "SystemExit: 3" in errors[0]


def test_feedback_that_nobody_asked_for_is_nothing() -> None:
    with Fake() as fake, Container(echo(), servers=fake.endpoint):
        peer, hello = fake.hello()
        assert "feedback" not in hello
        fake.send(peer, b"feedback", *LESSON)
        assert "error" not in fake.result(ask(fake, peer))[0]


def test_feedback_that_is_not_taken_is_dropped_and_delays_no_batch(caplog: pytest.LogCaptureFixture) -> None:
    leave, told = threading.Event(), []
    made = echo()

    @made.feedback
    def stuck(feedback: Feedback) -> None:
        told.append(feedback)
        leave.wait(60)

    with Fake() as fake, Container(made, servers=fake.endpoint):
        peer, _ = fake.hello()
        for _ in range(200):
            fake.send(peer, b"feedback", *LESSON)
        assert "error" not in fake.result(ask(fake, peer))[0]
        leave.set()
    assert len(told) <= 66
    assert sum("faster than its hook" in record.getMessage() for record in caplog.records) == 1


def test_exceptions_and_bad_outputs_are_batch_errors() -> None:
    @model(name="m", inputs=[X], outputs=[Y])
    def predict(x: Any) -> Any:
        if len(x) == 1:
            raise ValueError("one row is not enough")
        if len(x) == 2:
            raise SystemExit(3)
        return x[:1]

    with Fake() as fake, Container(predict, servers=fake.endpoint):
        peer, _ = fake.hello()
        assert fake.result(ask(fake, peer, 1))[0] == {"error": "ValueError: one row is not enough"}
        assert fake.result(ask(fake, peer, 2))[0] == {"error": "SystemExit: 3"}
        assert fake.result(ask(fake, peer, 3))[0] == {"error": 'output "y": 3 rows came in, 1 went out (FP32 [1, 2])'}


def test_an_exit_in_a_row_of_an_async_model_fails_the_row() -> None:
    @model(name="m", inputs=[X], outputs=[Y], per_row=True)
    async def predict(x: Any) -> Any:
        raise SystemExit(3)

    with Fake() as fake, Container(predict, servers=fake.endpoint):
        peer, _ = fake.hello()
        for _ in range(2):  # the event loop lives
            errors = fake.result(ask(fake, peer))[0]["errors"]
            assert errors == [{"row": 0, "message": "RuntimeError: SystemExit: 3"}]


def test_an_exit_that_ends_the_event_loop_ends_the_container() -> None:
    tasks = []

    async def leave() -> None:
        raise SystemExit(3)

    @model(name="m", inputs=[X], outputs=[Y])
    async def predict(x: Any) -> Any:
        tasks.append(asyncio.create_task(leave()))
        return x

    with Fake() as fake, Container(predict, servers=fake.endpoint) as container:
        peer, _ = fake.hello()
        fake.result(ask(fake, peer))
        with pytest.raises(RuntimeError, match="its event loop was ended: SystemExit: 3"):
            container.wait(20)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "text"), [(ValueError("\udcff"), "ValueError: \udcff"), (Mute(), "Mute")], ids=["surrogate", "mute"]
)
def test_an_exception_whose_text_cannot_be_sent_is_answered(error: Exception, text: str) -> None:
    @model(name="m", inputs=[X], outputs=[Y])
    def predict(x: Any) -> Any:
        raise error

    with Fake() as fake, Container(predict, servers=fake.endpoint):
        peer, _ = fake.hello()
        for _ in range(2):
            assert fake.result(ask(fake, peer))[0] == {"error": text}


def test_a_model_without_a_batch_dimension() -> None:
    made = model(name="m", inputs=[Tensor("x", "FP32", [2])], outputs=[Tensor("y", "FP32", [])])(lambda x: x.sum())
    with Fake() as fake, Container(made, servers=fake.endpoint):
        peer, _ = fake.hello()
        head, (frame,) = fake.result(fake.batch(peer, 1, [("x", "FP32", [2], ROW)]))
        assert head["outputs"] == [{"name": "y", "datatype": "FP32", "shape": []}]
        assert frame == np.array(3, "<f4").tobytes()


def test_heartbeats_go_on_while_the_model_computes() -> None:
    inside, leave = threading.Event(), threading.Event()

    @model(name="slow", inputs=[X], outputs=[Y])
    def slow(x: Any) -> Any:
        inside.set()
        leave.wait(60)
        return x

    with Fake(heartbeat_ms=20) as fake, Container(slow, servers=fake.endpoint):
        peer, _ = fake.hello()
        batch_id = ask(fake, peer)
        assert inside.wait(20)
        fake.wait_for(b"heartbeat", len(fake.seen(b"heartbeat")) + 5)
        assert not fake.seen(b"result")
        leave.set()
        fake.result(batch_id)


def test_the_next_batch_is_received_while_one_computes_and_concurrency_is_kept() -> None:
    running = most = 0
    lock = threading.Lock()
    both = threading.Barrier(2)

    @model(name="two", inputs=[X], outputs=[Y], concurrency=2)
    def two(x: Any) -> Any:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        both.wait(20)
        with lock:
            running -= 1
        return x

    with Fake() as fake, Container(two, servers=fake.endpoint):
        peer, _ = fake.hello()
        for batch_id in [ask(fake, peer) for _ in range(6)]:
            fake.result(batch_id)
    assert most == 2


def test_async_batches_overlap_up_to_the_concurrency() -> None:
    running = most = 0

    @model(name="aio", inputs=[X], outputs=[Y], concurrency=3)
    async def aio(x: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(200):
            if most >= 3:
                break
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)  # a chance for a fourth to come in where it must not
        running -= 1
        if len(x) == 2:
            raise ValueError("two")
        return x

    @aio.warmup
    async def warm() -> None:
        await asyncio.sleep(0)

    with Fake() as fake, Container(aio, servers=fake.endpoint):
        peer, hello = fake.hello()
        assert hello["slots"] == 4
        ids = [ask(fake, peer) for _ in range(5)]
        for batch_id in ids:
            assert "outputs" in fake.result(batch_id)[0]
        assert fake.result(ask(fake, peer, 2))[0] == {"error": "ValueError: two"}
    assert most == 3


def test_several_models_and_several_servers() -> None:
    one, two = echo(name="one"), echo(name="two")
    with Fake() as a, Fake() as b, Container(one, two, servers=[a.endpoint, b.endpoint]) as container:
        for fake in (a, b):
            names = {fake.hello(n)[1]["model"] for n in (1, 2)}
            assert names == {"one", "two"}
            for n in (1, 2):
                assert "outputs" in fake.result(ask(fake, fake.hello(n)[0]))[0]
        assert container.wait_ready(20)


def test_ipc(tmp_path: Path) -> None:
    with Fake(f"ipc://{tmp_path}/s") as fake, Container(echo(), servers=fake.endpoint):
        peer, _ = fake.hello()
        assert "outputs" in fake.result(ask(fake, peer))[0]


def test_a_name_with_two_addresses_is_two_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    with Fake("tcp://127.0.0.1:*") as a:
        port = a.endpoint.rpartition(":")[2]
        found = [(socket.AF_INET, 1, 6, "", (host, int(port))) for host in ("127.0.0.1", "127.0.0.2")]
        with Fake(f"tcp://127.0.0.2:{port}") as b:
            monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, type: found)
            with Container(echo(), servers=f"shivad.example:{port}"):
                for fake in (a, b):
                    assert "outputs" in fake.result(ask(fake, fake.hello()[0]))[0]


def test_a_server_that_comes_late_and_is_restarted() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    with Container(echo(), servers=endpoint) as container:
        assert not container.wait_ready(0.3)
        for _ in range(2):
            with Fake(endpoint, heartbeat_ms=3_600_000, dead_after_ms=3_600_000) as fake:
                peer, _ = fake.hello()
                assert "outputs" in fake.result(ask(fake, peer))[0]
            until = time.monotonic() + 20
            while container.wait_ready(0) and time.monotonic() < until:
                time.sleep(0.005)
            assert not container.wait_ready(0), "the closed connection was not noticed"


def test_a_connection_that_ends_behind_many_messages_is_noticed() -> None:
    with Fake(heartbeat_ms=3_600_000, dead_after_ms=3_600_000) as fake, Container(echo(), servers=fake.endpoint) as c:
        peer, _ = fake.hello()
        assert c.wait_ready(20)
        for _ in range(100 * link._BURST):
            fake.send(peer, b"heartbeat")
        fake.close()
        until = time.monotonic() + 20
        while c.wait_ready(0) and time.monotonic() < until:
            time.sleep(0.005)
        assert not c.wait_ready(0)


def test_answers_do_not_reach_the_next_server_and_lost_batches_are_not_computed() -> None:
    inside, leave = threading.Event(), threading.Event()
    calls = 0

    @model(name="slow", inputs=[X], outputs=[Y])
    def slow(x: Any) -> Any:
        nonlocal calls
        calls += 1
        inside.set()
        leave.wait(60)
        return x

    with Fake() as first, Container(slow, servers=first.endpoint):
        for _ in range(2):
            ask(first, first.hello()[0])
        assert inside.wait(20)
        endpoint = first.endpoint
        first.close()
        with Fake(endpoint) as second:
            peer, _ = second.hello()
            leave.set()
            batch_id = ask(second, peer)
            second.result(batch_id)
            assert [frames[1] for _, frames in second.seen(b"result")] == [batch_id]
    assert calls == 2, "the batch that was queued when the first server went had nobody to answer"


def test_a_silent_server_is_left(caplog: pytest.LogCaptureFixture) -> None:
    with Fake(beat=False, dead_after_ms=100, heartbeat_ms=30) as fake, Container(echo(), servers=fake.endpoint):
        fake.hello(3)
    assert "silence for 0.1 s" in caplog.text


def test_refusal_is_reported_and_tried_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(link, "REFUSED_RETRY_SECONDS", 0.05)
    with Fake(refuse="expected FP32 [-1,2], got FP64") as fake, Container(echo(), servers=fake.endpoint) as container:
        fake.hello(3)
        assert not container.wait_ready(0)
    assert "registration refused: expected FP32 [-1,2], got FP64" in caplog.text


def test_after_a_refusal_the_next_try_is_far_away() -> None:
    with Fake(refuse="no") as fake, Container(echo(), servers=fake.endpoint) as container:
        fake.hello()
        until = time.monotonic() + 20
        while not (container._links and container._links[0].session is None) and time.monotonic() < until:
            time.sleep(0.005)
        assert container._links[0].wake() - time.monotonic() > link.REFUSED_RETRY_SECONDS / 3


def test_goodbye_with_reconnect() -> None:
    with Fake() as fake, Container(echo(), servers=fake.endpoint) as container:
        peer, _ = fake.hello()
        fake.goodbye(peer, reconnect=True)
        peer, _ = fake.hello(2)
        assert "outputs" in fake.result(ask(fake, peer))[0]
        assert not container.wait(0)


def test_a_goodbye_is_heard_although_the_connection_ends_with_it() -> None:
    models = [echo(name=f"m{n}") for n in range(10)]
    with Fake() as fake, Container(*models, servers=fake.endpoint) as container:
        for n in range(10):
            fake.hello(n + 1)
        assert container.wait_ready(20)
        for peer, _ in fake.seen(b"hello"):
            fake.goodbye(peer, reconnect=False)
        fake.close()
        assert container.wait(20), "a goodbye for good was taken for a lost connection"


def test_goodbye_for_good_after_the_last_answer() -> None:
    leave = threading.Event()

    @model(name="slow", inputs=[X], outputs=[Y])
    def slow(x: Any) -> Any:
        leave.wait(60)
        return x

    with Fake() as fake, Container(slow, servers=fake.endpoint) as container:
        peer, _ = fake.hello()
        batch_id = ask(fake, peer)
        fake.goodbye(peer, reconnect=False)
        assert not container.wait(0.1)
        leave.set()
        assert "outputs" in fake.result(batch_id)[0]
        assert container.wait(20), "nobody wants the model any more"
        assert len(fake.seen(b"hello")) == 1


def test_drain_answers_what_was_sent() -> None:
    inside, leave = threading.Event(), threading.Event()

    @model(name="slow", inputs=[X], outputs=[Y])
    def slow(x: Any) -> Any:
        inside.set()
        leave.wait(60)
        return x

    with Fake() as fake, Container(slow, servers=fake.endpoint) as container:
        peer, _ = fake.hello()
        batches = [ask(fake, peer) for _ in range(2)]
        assert inside.wait(20)
        container.drain()
        fake.wait_for(b"draining")
        leave.set()
        for batch_id in batches:
            assert "outputs" in fake.result(batch_id)[0]
        assert not container.wait(0.05)
        fake.goodbye(peer, reconnect=True, reason="drained")
        assert container.wait(20)


def test_stop_leaves_what_is_queued() -> None:
    inside, leave = threading.Event(), threading.Event()
    calls = 0

    @model(name="slow", inputs=[X], outputs=[Y])
    def slow(x: Any) -> Any:
        nonlocal calls
        calls += 1
        inside.set()
        leave.wait(60)
        return x

    with Fake() as fake:
        with Container(slow, servers=fake.endpoint) as container:
            peer, _ = fake.hello()
            for _ in range(2):
                ask(fake, peer)
            runner = container._runners[0]
            assert inside.wait(20)
            until = time.monotonic() + 20
            while runner._jobs.empty() and time.monotonic() < until:
                time.sleep(0.005)
            container.stop()
            until = time.monotonic() + 20
            while container._links[0].session and time.monotonic() < until:
                time.sleep(0.005)
            leave.set()
        runner._threads[0].join(20)
    assert calls == 1


def test_nothing_registers_again_while_draining() -> None:
    inside, leave = threading.Event(), threading.Event()

    @model(name="slow", inputs=[X], outputs=[Y])
    def slow(x: Any) -> Any:
        inside.set()
        leave.wait(60)
        return x

    with Fake() as fake, Container(slow, echo(), servers=fake.endpoint) as container:
        peers = {hello["model"]: peer for peer, hello in (fake.hello(1), fake.hello(2))}
        assert container.wait_ready(20)
        batch_id = ask(fake, peers["slow"])
        assert inside.wait(20)
        container.drain()
        fake.wait_for(b"draining", 2)
        container._resolver._found([fake.endpoint])  # the name has been looked up anew
        fake.goodbye(peers["echo"], reconnect=True)
        time.sleep(0.1)  # the other one is still busy: a chance for the first to come back
        leave.set()
        fake.result(batch_id)
        fake.goodbye(peers["slow"], reconnect=True)
        assert container.wait(20)
        assert len(fake.seen(b"hello")) == 2


def test_drain_has_an_end(caplog: pytest.LogCaptureFixture) -> None:
    with Fake() as fake, Container(echo(), servers=fake.endpoint) as container:
        fake.hello()
        assert container.wait_ready(20)
        container.drain(timeout=0.05)  # the server never says goodbye
        assert container.wait(20)
    assert "not drained in time: 0 batches are lost" in caplog.text


def test_a_runner_may_be_stopped_before_its_loop_runs() -> None:
    async def function(x: Any) -> Any:
        return x

    runner = Runner(model(name="a", inputs=[X], outputs=[Y])(function), lambda error: None)
    runner.stop(0)
    runner.start()
    runner._threads[0].join(20)
    assert not runner._threads[0].is_alive()


def test_warmup_comes_before_hello() -> None:
    made = echo()
    with Fake() as fake:

        @made.warmup
        def warm() -> None:
            assert not fake.seen(b"hello")
            warmed.set()

        warmed = threading.Event()
        with Container(made, servers=fake.endpoint):
            fake.hello()
            assert warmed.is_set()


def test_the_warmup_of_a_sync_model_may_be_async() -> None:
    made = echo()
    warmed = threading.Event()

    @made.warmup
    async def warm() -> None:
        await asyncio.sleep(0)
        warmed.set()

    with Fake() as fake, Container(made, servers=fake.endpoint):
        fake.hello()
        assert warmed.is_set()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_failed_warmup_ends_the_container(is_async: bool) -> None:
    made = echo()
    if is_async:

        async def function(x: Any) -> Any:
            return x

        made = model(name="a", inputs=[X], outputs=[Y])(function)

    @made.warmup
    def warm() -> None:
        raise OSError("no weights")

    with (
        Fake() as fake,
        Container(made, servers=fake.endpoint) as container,
        pytest.raises(RuntimeError, match="warm-up failed: OSError: no weights"),
    ):
        container.wait(20)
    assert not fake.seen(b"hello")


def test_an_unhealthy_model_signs_off_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    made = echo(health_interval=0.01)
    well = True

    @made.health
    def health() -> bool:
        return well

    with Fake() as fake, Container(made, servers=fake.endpoint):
        peer, _ = fake.hello()
        assert "outputs" in fake.result(ask(fake, peer))[0]
        well = False
        fake.wait_for(b"draining")
        assert len(fake.seen(b"hello")) == 1
        fake.goodbye(peer, reconnect=True)
        well = True
        peer, _ = fake.hello(2)
        assert "outputs" in fake.result(ask(fake, peer))[0]
    assert "the health hook returned False; signing off" in caplog.text


@pytest.mark.parametrize("is_async", [False, True])
def test_an_exit_in_a_health_hook_is_a_failure(is_async: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def function(x: Any) -> Any:
        return x

    def health() -> None:
        if leave:
            raise SystemExit(3)

    async def health_async() -> None:
        health()

    leave = True
    made = model(name="m", inputs=[X], outputs=[Y], health_interval=0.01)(function if is_async else lambda x: x)
    made.health(health_async if is_async else health)
    with Fake() as fake, Container(made, servers=fake.endpoint):
        fake.goodbye(fake.wait_for(b"draining")[0], reconnect=True)
        leave = False
        peer, _ = fake.hello(2)
        assert "outputs" in fake.result(ask(fake, peer))[0]
    assert "SystemExit: 3; signing off" in caplog.text


SCRIPT = """
import time
from shiva_container import Tensor, model, serve

@model(name="s", inputs=[Tensor("x", "FP32", [-1, 2])], outputs=[Tensor("y", "FP32", [-1, 2])])
def predict(x):
    print("in", flush=True)
    time.sleep(DELAY)
    return x

serve()
print("end", flush=True)
"""


@contextmanager
def start(tmp_path: Path, servers: str, script: str) -> Iterator[subprocess.Popen[str]]:
    path = tmp_path / "served.py"
    path.write_text(script)
    process = subprocess.Popen(
        [sys.executable, str(path)],
        env={**os.environ, "SHIVA_SERVERS": servers},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_drains_on_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    with Fake() as fake, start(tmp_path, fake.endpoint, SCRIPT.replace("DELAY", "0.3")) as process:
        peer, _ = fake.hello()
        batch_id = ask(fake, peer)
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        process.send_signal(number)
        fake.wait_for(b"draining")
        assert "outputs" in fake.result(batch_id)[0]
        fake.goodbye(peer, reconnect=False)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 0, err
        assert out == "end\n"
        assert "model s/1 registered with fake/1" in err


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with Fake() as fake, start(tmp_path, fake.endpoint, SCRIPT.replace("DELAY", "3600")) as process:
        peer, _ = fake.hello()
        ask(fake, peer)
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        process.send_signal(signal.SIGTERM)
        fake.wait_for(b"draining")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode == 0


ASIDE = """
import signal, threading, time
threading.Thread(target=time.sleep, args=[3600], daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # so that the thread above gets it
"""


def test_a_signal_that_does_not_wake_the_main_thread_is_heard(tmp_path: Path) -> None:
    with Fake() as fake, start(tmp_path, fake.endpoint, ASIDE + SCRIPT.replace("DELAY", "0")) as process:
        peer, _ = fake.hello()
        process.send_signal(signal.SIGTERM)
        fake.wait_for(b"draining")
        fake.goodbye(peer, reconnect=False)
        assert process.wait(20) == 0


FORKING = """
import multiprocessing
import time
from shiva_container import Tensor, model, serve

@model(name="fork", inputs=[Tensor("x", "FP32", [-1, 2])], outputs=[Tensor("y", "FP32", [-1, 2])])
def predict(x):
    fork = multiprocessing.get_context("fork")
    begun = fork.Event()
    worker = fork.Process(target=work, args=[begun], daemon=True)
    worker.start()
    begun.wait()
    worker.terminate()
    worker.join(10)
    assert not worker.is_alive()
    return x

def work(begun):
    begun.set()
    time.sleep(60)

serve()
"""


def test_processes_that_the_model_forks_end_by_a_signal(tmp_path: Path) -> None:
    with Fake() as fake, start(tmp_path, fake.endpoint, FORKING) as process:
        peer, _ = fake.hello()
        assert "outputs" in fake.result(ask(fake, peer))[0]
        process.send_signal(signal.SIGTERM)
        fake.wait_for(b"draining")
        fake.goodbye(peer, reconnect=False)
        assert process.wait(20) == 0


HOGGING = """
import ctypes
from shiva_container import Tensor, model, serve

hold = ctypes.PyDLL(None).usleep  # unlike CDLL, PyDLL keeps the interpreter's lock

@model(name="hog", inputs=[Tensor("x", "FP32", [-1, 2])], outputs=[Tensor("y", "FP32", [-1, 2])])
def predict(x):
    hold(1_500_000)
    return x

serve()
"""


def test_a_model_that_holds_the_lock_does_not_make_the_server_look_dead(tmp_path: Path) -> None:
    with Fake(heartbeat_ms=50, dead_after_ms=1000) as fake, start(tmp_path, fake.endpoint, HOGGING):
        peer, _ = fake.hello()
        for _ in range(3):
            assert "outputs" in fake.result(ask(fake, peer))[0]
        assert len(fake.seen(b"hello")) == 1, "the container gave up a server whose heartbeats lay unread"

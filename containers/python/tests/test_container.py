"""What a container answers, over real ZeroMQ sockets, to a server written from the protocol."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import numpy as np
import pytest
from echo_model import ROW, Held, X, Y, ask, echo
from fake_server import Fake
from shiva_container import DATATYPES, Batch, Container, Feedback, Request, Tensor, model
from shiva_container.check import check_model


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
            "pauses": True,
            "waits": True,
            "again": False,
            "grants": True,
            "arena": True,
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
        ([("x", "FP32", [1, 2], ROW)], {"metadata": [{}, {}]}, "metadata of 1 requests expected"),
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


def test_all_metadata_reaches_a_function_that_sees_requests() -> None:
    seen: list[Any] = []

    @model(name="sees", inputs=[X], outputs=[Y])
    def sees(x: Any, batch: Batch) -> Any:
        seen.extend((one.parameters, one.metadata) for one in batch.requests)
        return x

    with Fake() as fake, Container(sees, servers=fake.endpoint):
        peer, hello = fake.hello()
        assert hello["metadata"] is True
        for n in range(2):  # no two batches share what is remembered of their headers
            header = {"parameters": [None, {"k": 1}], "metadata": [{"id": n, "timeout_ms": 5}, None]}
            fake.result(fake.batch(peer, 2, [("x", "FP32", [2, 2], 2 * ROW)], requests=[1, 1], **header))
            assert seen == [({"id": n}, {"id": n, "timeout_ms": 5}), ({"k": 1}, {"k": 1})]
            seen.clear()
    with Fake() as fake, Container(echo(), servers=fake.endpoint):
        assert "metadata" not in fake.hello()[1]


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


@pytest.mark.parametrize("kind", ["batched", "per row", "async per row", "alone"])
def test_a_model_without_inputs(kind: str) -> None:
    def whole(batch: Batch) -> Any:
        return np.float32([one.parameters["n"] for one in batch.requests])

    def single(request: Request) -> Any:
        return np.float32(request.parameters["n"])

    async def awaited(request: Request) -> Any:
        return single(request)

    function, batched = {
        "batched": (whole, True),
        "per row": (single, True),
        "async per row": (awaited, True),
        "alone": (whole, False),
    }[kind]
    outputs = [Tensor("y", "FP32", [-1])]
    made = model(name="m", inputs=[], outputs=outputs, batched=batched, per_row="per row" in kind)(function)
    assert check_model(model(name="c", inputs=[], outputs=[Tensor("y", "FP32", [])])(lambda: np.float32(1)), 4, 4)
    with Fake(batched=batched) as fake, Container(made, servers=fake.endpoint):
        peer, hello = fake.hello()
        assert (hello["inputs"], hello["batched"]) == ([], batched)
        rows = 3 if batched else 1
        for n in (1, 5):  # the second header is not the one that is remembered of the first
            parameters = [{"n": n + i} for i in range(rows)]
            head, (y,) = fake.result(fake.batch(peer, rows, [], parameters=parameters))
            assert head == {"outputs": [{"name": "y", "datatype": "FP32", "shape": [rows]}]}
            assert np.frombuffer(y, "<f4").tolist() == [n + i for i in range(rows)]


def test_heartbeats_go_on_while_the_model_computes() -> None:
    held = Held()
    with Fake(heartbeat_ms=20) as fake, Container(held.model, servers=fake.endpoint):
        peer, _ = fake.hello()
        batch_id = ask(fake, peer)
        assert held.inside.wait(20)
        fake.wait_for(b"heartbeat", len(fake.seen(b"heartbeat")) + 5)
        assert not fake.seen(b"result")
        held.leave.set()
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

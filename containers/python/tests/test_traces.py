"""Spans of the server continue in the function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from echo_model import ROW, X, Y, ask
from fake_server import Fake
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from shiva_container import Batch, Container, model, traces, wire
from shiva_container.batches import Batches
from shiva_container.session import Delivery
from shiva_container.tensors import TensorError

ONE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-0af7651916cd43dd8448eb211c80319d-b7ad6b7169203332-01"

_exporter = InMemorySpanExporter()
_provider = TracerProvider()
_provider.add_span_processor(SimpleSpanProcessor(_exporter))


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    monkeypatch.setattr(trace, "get_tracer", _provider.get_tracer)
    _exporter.clear()
    yield _exporter
    _exporter.clear()


STATE = "rojo=00f067aa0ba902b7,congo=t61"


def followed(fake: Fake, peer: bytes, *parents: str | None, **header: object) -> bytes:
    rows = len(parents)
    return fake.batch(peer, rows, [("x", "FP32", [rows, 2], ROW * rows)], traces=list(parents), **header)


def names(spans: InMemorySpanExporter) -> list[str]:
    return [span.name for span in spans.get_finished_spans()]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_spans_of_the_function_are_children(spans: InMemorySpanExporter, is_async: bool) -> None:
    seen: list[Batch] = []

    def work(x: Any, batch: Batch) -> Any:
        seen.append(batch)
        with trace.get_tracer("mine").start_as_current_span("decode"):
            return x

    async def work_async(x: Any, batch: Batch) -> Any:
        return work(x, batch)

    made = model(name="echo", inputs=[X], outputs=[Y])(work_async if is_async else work)
    with Fake() as fake, Container(made, servers=fake.endpoint):
        peer, _ = fake.hello()
        fake.result(ask(fake, peer))
        assert names(spans) == ["decode"]
        spans.clear()
        fake.result(followed(fake, peer, None, ONE, OTHER, trace_states=[None, STATE, None]))
        fake.wait(lambda: len(names(spans)) == 2, "the spans")
    inner, outer = spans.get_finished_spans()
    assert (inner.name, outer.name) == ("decode", "predict echo")
    assert parent_of(inner) == f"{outer.context.span_id:016x}"
    assert f"00-{outer.context.trace_id:032x}-{parent_of(outer)}-01" == ONE
    assert [f"{link.context.span_id:016x}" for link in outer.links] == [OTHER[36:52]]
    assert outer.attributes == {"shivad.model": "echo", "shivad.version": made.version, "shivad.rows": 3}
    assert [one.trace for one in seen[1].requests] == ["", ONE, OTHER]
    assert [one.trace_state for one in seen[1].requests] == ["", STATE, ""]
    assert inner.context.trace_state.to_header() == outer.context.trace_state.to_header() == STATE
    assert seen[1].traces == (ONE, OTHER)


def parent_of(span: ReadableSpan) -> str:
    assert span.parent is not None
    return f"{span.parent.span_id:016x}"


def test_a_failure_is_the_spans(spans: InMemorySpanExporter) -> None:
    @model(name="bad", inputs=[X], outputs=[Y])
    def bad(x: Any) -> Any:
        raise ValueError("no kernel image")

    with Fake() as fake, Container(bad, servers=fake.endpoint):
        peer, _ = fake.hello()
        head, _ = fake.result(followed(fake, peer, ONE))
    assert "no kernel image" in head["error"]
    (span,) = spans.get_finished_spans()
    assert not span.status.is_ok
    assert "no kernel image" in str(span.status.description)


def test_without_opentelemetry(spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "_installed", False)
    made = model(name="echo", inputs=[X], outputs=[Y])(lambda x: x)
    with Fake() as fake, Container(made, servers=fake.endpoint):
        peer, _ = fake.hello()
        _, (y,) = fake.result(followed(fake, peer, ONE))
    assert y == ROW
    assert names(spans) == []


def test_a_header_is_parsed_once_whoever_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[Any] = []

    def parse(header: Any, whole: Any = wire.parse_batch) -> Any:
        parsed.append(header)
        return whole(header)

    monkeypatch.setattr(wire, "parse_batch", parse)
    of_requests = model(name="requests", inputs=[X], outputs=[Y])(lambda x, batch: x)
    of_arrays = model(name="arrays", inputs=[X], outputs=[Y])(lambda x: x)

    def read(batches: Batches, more: str = "", rows: int = 3) -> Batch:
        head = f'{{"rows":{rows},"inputs":[{{"name":"x","datatype":"FP32","shape":[{rows},2]}}],"timeout_ms":50{more}}}'
        return batches.read(Delivery(b"", head.encode(), [ROW * rows], 1.0))[1]

    for one in of_requests, of_arrays:
        batches = Batches(one)
        parsed.clear()
        for parents in [None, None, None], [None, ONE, None], [ONE, None, OTHER], [ONE, OTHER, ONE]:
            batch = read(batches, ',"traces":' + wire.to_json(parents).decode() if any(parents) else "")
            assert [request.trace for request in batch.requests] == [parent or "" for parent in parents]
            assert batch.traces == tuple(filter(None, parents))
            assert [request.rows for request in batch.requests] == [1, 1, 1]
        assert len(parsed) == 1
        # With states, or in an unusual form, they are read with the rest.
        for more, states in (
            (f',"traces":["{ONE}",null,null],"trace_states":["{STATE}",null,null]', STATE),
            (f',"traces": ["{ONE}", null, null]', ""),
            (f',"traces":["{ONE[:-1]}\\u0031",null,7]', ""),
        ):
            batch = read(batches, more)
            assert (batch.requests[0].trace, batch.requests[0].trace_state, batch.traces) == (ONE, states, (ONE,))
        # A parameter does not belong to the header, whatever its name.
        batch = read(batches, ',"parameters":[{"a":1,"traces":[null]}]', rows=1)
        assert batch.requests[0].parameters == {"a": 1, "traces": [None]}
        assert len(parsed) == 5
        with pytest.raises(TensorError, match="2 traces for 3 requests"):
            read(batches, f',"traces":["{ONE}",null]')

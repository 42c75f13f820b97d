"""Spans of the server go on in the function."""

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
from shiva_container import Batch, Container, model, traces

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

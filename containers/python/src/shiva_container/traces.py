"""Spans of OpenTelemetry for batches with requests that the server traces.

They are made if the package ``opentelemetry-api`` is installed; the provider that the program has
set with ``opentelemetry.trace.set_tracer_provider`` decides whether they are exported.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

try:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:  # it is optional
    _installed = False
else:
    _installed = True

if TYPE_CHECKING:
    from .models import Batch, Model


def following(model: Model[..., object], batch: Batch) -> AbstractContextManager[object]:
    """The span of a traced batch, a child of its first traced request and linked to the others.

    Spans that the function makes within it are its children.
    """
    if not _installed:
        return nullcontext()
    parents = [
        TraceContextTextMapPropagator().extract({"traceparent": one.trace, "tracestate": one.trace_state})
        for one in batch.requests
        if one.trace
    ]
    links = [trace.Link(trace.get_current_span(parent).get_span_context()) for parent in parents[1:]]
    return trace.get_tracer("shiva_container").start_as_current_span(
        f"predict {model.name}",
        context=parents[0],
        kind=trace.SpanKind.SERVER,
        links=links,
        attributes={"shivad.model": model.name, "shivad.version": model.version, "shivad.rows": batch.rows},
    )

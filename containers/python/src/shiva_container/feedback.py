"""Feedback about a model's answers, as its hook receives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .tensors import Array


@dataclass(frozen=True)
class Feedback:
    """An application's feedback about one of the model's answers: see :meth:`.Model.feedback`."""

    application: str
    user: str
    """The user of the feedback; empty if it names none."""
    rows: int
    """Rows of the request; 1 if the model is not batched."""
    inputs: Mapping[str, Array]
    """The inputs of the request; without optional ones that it left out."""
    outputs: Mapping[str, Array]
    """The outputs of this model; empty if they are unknown."""
    truth: Mapping[str, Array] = field(default_factory=dict)
    """The right answer, if the client sent it as tensors."""
    label: object = None
    """The right answer as JSON: a value, a list, or a dict of them by output."""
    loss: float | None = None
    """How bad the answer was, from 0 to 1, if the feedback is a loss."""

"""Finds what to draw in the outputs of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..wire import Array

FORMS = ("xywh", "xyxy")
"""The forms of a box of four numbers: a corner and the size, or two corners."""

MOST = 200
"""The maximum number of shapes to draw."""

LABELS = ("labels", "label", "classes", "class_ids", "class")
SCORES = ("scores", "score", "confidence")


@dataclass
class Shape:
    """A polygon in pixels of the picture, and the text above it."""

    corners: Array  # [n, 2] of x and y
    text: str = ""


@dataclass
class Drawing:
    """The drawing for an answer: shapes, and lines of text in the corner."""

    shapes: list[Shape] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


def find_drawing(outputs: Mapping[str, Array], width: int, height: int, form: str) -> Drawing:
    """Find what to draw in outputs.

    - ``boxes``, [n, 4], in pixels, in the given form; or [n, corners, 2], polygons. Outputs with n
      elements, named as in LABELS and SCORES, are written above them.
    - ``detections``, [n, 6], in the form of Frigate's detectors: class, score, y_min, x_min, y_max,
      x_max, with coordinates from 0 to 1.
    - Other outputs of one to four elements are lines of text: ``label: 4``.
    """
    drawn, result = set(), Drawing()
    boxes = outputs.get("boxes")
    if boxes is not None and boxes.dtype.kind in "iuf" and (boxes.shape[1:] == (4,) or boxes.shape[2:] == (2,)):
        names = [name for known in (LABELS, SCORES) for name in known if _length(outputs.get(name)) == len(boxes)]
        drawn = {"boxes", *names}
        texts = [" ".join(_text(outputs[name].reshape(-1)[i]) for name in names) for i in range(len(boxes[:MOST]))]
        corners = boxes[:MOST].astype(np.float64)
        polygons = [_corners(box.tolist(), form) if box.ndim == 1 else box for box in corners]
        result.shapes = [Shape(*each) for each in zip(polygons, texts, strict=True)]
    rows = outputs.get("detections")
    if rows is not None and rows.dtype.kind == "f" and rows.shape[-1:] == (6,):
        drawn.add("detections")
        result.shapes += _detections(rows.reshape(-1, 6)[:MOST].astype(np.float64), width, height)
    for name, value in outputs.items():
        if name not in drawn and 0 < value.size <= 4:
            result.lines.append(f"{name}: {' '.join(map(_text, value.reshape(-1)))}")
    return result


def _length(value: Array | None) -> int:
    return -1 if value is None else value.size


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return f"{value:.3g}" if isinstance(value, float | np.floating) else str(value)


def _corners(box: Sequence[float], form: str) -> Array:
    a, b, c, d = box
    right, bottom = (a + c, b + d) if form == "xywh" else (c, d)
    return np.array([[a, b], [right, b], [right, bottom], [a, bottom]])


def _detections(rows: Array, width: int, height: int) -> Iterator[Shape]:
    for kind, score, top, left, bottom, right in rows.tolist():
        if score > 0:
            box = _corners((left * width, top * height, right * width, bottom * height), "xyxy")
            yield Shape(box, f"{kind:.0f} {score:.2f}")

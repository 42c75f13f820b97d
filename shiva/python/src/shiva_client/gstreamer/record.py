"""Formats a model's answer to a picture as a line of JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from .. import wire
from ..frames import Result
from ..wire import Array

NEVER = (1 << 64) - 1
"""GStreamer's value for no time."""


def line(result: Result) -> str:
    """One JSON object, and a line feed.

    ``seq`` is the number of the picture since the pipeline began, from 0, ``pts`` its time in
    nanoseconds (null: none), ``width`` and ``height`` its size, ``age`` how many seconds after the
    picture the answer came, and ``model`` and ``version`` those that answered. ``outputs`` has
    numbers, booleans and texts in lists nested by the shape of the output.
    """
    answer, picture = result.answer, result.frame
    record = {
        "seq": picture.seq,
        "pts": None if picture.pts == NEVER else picture.pts,
        "width": picture.width,
        "height": picture.height,
        "age": round(result.age, 4),
        "model": answer.metadata.get("model_name"),
        "version": answer.metadata.get("model_version"),
        "outputs": {name: _plain(value) for name, value in answer.items()},
    }
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n"


def _plain(value: Array) -> Any:
    """Complex numbers are pairs, and NaN and infinity null, since JSON has neither."""
    if value.dtype.kind == "O":
        return wire.texts(value)
    if value.dtype.kind == "c":
        value = np.stack([value.real, value.imag], axis=-1)
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        numbers = value.astype(object)
        numbers[~np.isfinite(value)] = None
        value = numbers
    return value.tolist()

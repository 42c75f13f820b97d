"""Models for the pictures of videotestsrc."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from shiva_container import Image, Tensor, model, serve

SLOW = 0.2


def box(image: Any) -> Any:
    """The box around the bright pixels: x, y, width, height."""
    y, x = np.nonzero(image.max(axis=2) > 100)
    return np.array([[x.min(), y.min(), np.ptp(x) + 1, np.ptp(y) + 1]] if len(x) else np.empty((0, 4)), np.int32)


@model(
    name="ball",
    batched=False,
    inputs=[Tensor("image", "UINT8", [-1, -1, 3])],
    outputs=[Tensor("boxes", "INT32", [-1, 4]), Tensor("mean", "FP32", [1])],
)
def ball(image: Any) -> Any:
    return box(image), np.float32([image.mean()])


@model(
    name="slow",
    batched=False,
    inputs=[Tensor("image", "UINT8", [-1, -1, 3])],
    outputs=[Tensor("boxes", "INT32", [-1, 4])],
)
def slow(image: Any) -> Any:
    time.sleep(SLOW)
    return box(image)


@model(name="small", inputs=[Image("image", 48, 64)], outputs=[Tensor("label", "INT64", [-1])])
def small(image: Any) -> Any:
    return np.arange(len(image))


if __name__ == "__main__":
    serve()

"""Models whose inputs are pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
from shiva_container import Batch, Image, Tensor, model, serve

SIDE = 64


@model(name="seen", inputs=[Image("image", SIDE, SIDE)], outputs=[Tensor("pixels", "UINT8", [-1, SIDE, SIDE, 3])])
def seen(image: Any) -> Any:
    """Returns its input."""
    return image


@model(
    name="corner",
    inputs=[Image("image", SIDE, SIDE, channels="gray", layout="nchw", resize="letterbox")],
    outputs=[Tensor("point", "FP32", [-1, 2])],
)
def corner(image: Any, batch: Batch) -> Any:
    """Returns where the lower right corner of its input is in the client's picture."""
    return np.float32([fit.points([SIDE, SIDE]) for fit in batch.fits["image"]])


@model(name="size", batched=False, inputs=[Image("image")], outputs=[Tensor("shape", "INT64", [3])])
def size(image: Any) -> Any:
    return np.array(image.shape)


if __name__ == "__main__":
    serve()

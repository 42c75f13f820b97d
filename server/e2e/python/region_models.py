"""A model that finds coloured squares in a picture, and models that look at regions of pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
from shiva_container import Batch, Image, Request, Tensor, model, serve


@model(
    name="squares",
    inputs=[Image("image", 240, 320, resize="letterbox")],
    outputs=[Tensor("boxes", "FP32", [-1, 4], ragged="count"), Tensor("count", "INT32", [-1])],
)
def squares(image: Any, batch: Batch) -> Any:
    """The boxes of what is bright red, green or blue, from left to right, in the client's pixels."""
    found = []
    for pixels, fit in zip(image, batch.fits["image"], strict=True):
        boxes = []
        for channel in range(3):
            other = np.delete(pixels, channel, axis=2).max(axis=2)
            y, x = np.nonzero((pixels[..., channel] > 200) & (other < 60))
            if len(x):
                boxes.append([x.min(), y.min(), x.max() + 1, y.max() + 1])
        array = fit.boxes(np.float32(boxes).reshape(-1, 4))
        found.append(array[np.argsort(array[:, 0])])
    return found


@model(
    name="colour",
    inputs=[Image("image", 16, 16, resize="stretch", regions=True)],
    outputs=[Tensor("mean", "FP32", [-1, 3])],
)
def colour(image: Any) -> Any:
    """The mean colour of each row, without its edge."""
    return image[:, 4:-4, 4:-4].mean(axis=(1, 2), dtype=np.float32)


@model(
    name="place",
    inputs=[Image("image", regions=True)],
    outputs=[Tensor("box", "FP32", [-1, 4]), Tensor("first", "UINT8", [-1, 3])],
    per_row=True,
)
def place(image: Any, request: Request) -> Any:
    """Where each row is in the client's picture, and its first pixel."""
    return request.fits["image"].boxes(np.float32([0, 0, image.shape[1], image.shape[0]])), image[0, 0]


@model(name="whole", inputs=[Image("image", 8, 8, resize="stretch")], outputs=[Tensor("sum", "FP32", [-1])])
def whole(image: Any) -> Any:
    """Takes no regions."""
    return image.sum(axis=(1, 2, 3), dtype=np.float32)


if __name__ == "__main__":
    serve()

"""Numpy alone: blurs pictures, each pixel to the mean of its neighbours.

All pictures of a batch have one size; each batch may have another.

pip install ./containers/python
python examples/python/plain_numpy.py
"""

from typing import Any

import numpy as np
from shiva_container import Batch, Tensor, model, serve


@model(
    name="blur",
    version="1",
    platform="numpy",
    batched=True,
    inputs=[Tensor("picture", "FP32", [-1, -1, -1])],
    outputs=[Tensor("picture", "FP32", [-1, -1, -1])],
)
def blur(picture: Any, batch: Batch) -> Any:
    for row in np.flatnonzero(~np.isfinite(picture).all(axis=(1, 2))):
        batch.fail(int(row), "the picture has a pixel that is no number")
    height, width = picture.shape[1:]
    padded = np.pad(picture, ((0, 0), (1, 1), (1, 1)), mode="edge")
    shifted = [padded[:, y : y + height, x : x + width] for y in range(3) for x in range(3)]
    return np.mean(shifted, axis=0, dtype=np.float32)


if __name__ == "__main__":
    serve()

"""More models for Ultralytics' client, in addition to those of examples/ultralytics."""

from __future__ import annotations

from typing import Any

import numpy as np
from shiva_container import Tensor, model, serve

MANY = {
    "task": "classify",
    "end2end": False,
    "author": None,
    "names": {i: f"it's the class no. {i}" for i in range(1000)},
}


@model(
    name="ultra_half",
    inputs=[Tensor("images", "FP16", [-1, 3, 4, 4])],
    outputs=[Tensor("output1", "FP16", [-1, 1]), Tensor("output0", "FP16", [-1, 1])],
)
def half(images: Any) -> Any:
    """Twice the sum of a picture, and the sum: by name, the second output sorts first."""
    total = images.sum(axis=(1, 2, 3), dtype=np.float32)[:, None].astype(np.float16)
    return total * 2, total


@model(
    name="ultra_rows",
    batched=False,
    inputs=[Tensor("images", "UINT8", [1, 3, 4, 4])],
    outputs=[Tensor("a_found", "INT32", [-1, 6]), Tensor("b_count", "INT64", [])],
)
def rows(images: Any) -> Any:
    """Returns as many rows as the value of the first pixel."""
    n = int(images.flat[0])
    return np.tile(np.arange(6, dtype=np.int32), (n, 1)), np.array(n)


@model(
    name="ultra_many",
    inputs=[Tensor("images", "FP32", [-1, 3, 4, 4])],
    outputs=[Tensor("output0", "FP32", [-1, 1000])],
    parameters={"metadata": str(MANY)},
)
def many(images: Any) -> Any:
    return np.zeros((len(images), 1000), np.float32)


if __name__ == "__main__":
    serve()

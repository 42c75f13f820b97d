"""Models of a vision cell, whose requests have no tensors, and one whose answer is its next
request."""

from __future__ import annotations

import itertools

import numpy as np
from shiva_container import Batch, Tensor, model, serve

FRAMES = [Tensor("left", "UINT8", [-1, -1, 3]), Tensor("right", "UINT8", [-1, -1, 3]), Tensor("counter", "INT64", [-1])]
FOUND = itertools.cycle([0, 3])


@model(name="describe", inputs=[], outputs=[Tensor("n", "INT64", [1])])
def describe() -> np.ndarray:
    return np.array([7])


@model(name="detect", batched=False, inputs=[], outputs=[Tensor("rows", "FP32", [-1, 26])])
def detect() -> np.ndarray:
    return np.zeros((next(FOUND), 26), np.float32)


@model(
    name="cells",
    batched=False,
    inputs=[Tensor("image", "UINT8", [-1, -1, 3])],
    outputs=[Tensor("found", "FP32", [-1, 26])],
)
def cells(image: np.ndarray) -> np.ndarray:
    """As many parts as the first pixel says."""
    return np.arange(26 * int(image[0, 0, 0]), dtype=np.float32).reshape(-1, 26)


@model(name="switch-format", inputs=[], outputs=[Tensor("seen", "BYTES", [1])])
def switch(batch: Batch) -> np.ndarray:
    return np.array([str(batch.requests[0].parameters)], object)


@model(name="level", batched=True, inputs=[], outputs=[Tensor("mm", "FP32", [-1, 2]), Tensor("tank", "BYTES", [-1])])
def level(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """A sensor: its requests form batches. The answer is from the parameters."""
    tanks = [str(one.parameters.get("tank", "north")) for one in batch.requests]
    return np.float32([[len(tank), batch.rows] for tank in tanks]), np.array(tanks, object)


@model(name="inspect", batched=False, inputs=FRAMES, outputs=FRAMES)
def inspect(left: np.ndarray, right: np.ndarray, counter: np.ndarray) -> tuple[np.ndarray, ...]:
    return left, right, counter + 1


@model(name="rounded", inputs=[Tensor("x", "FP32", [-1, 2])], outputs=[Tensor("y", "FP32", [-1, 2])])
def rounded(x: np.ndarray) -> np.ndarray:
    return x


if __name__ == "__main__":
    serve()

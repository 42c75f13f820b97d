"""A model that finds red, green and blue parts, and answers with the table of a robot's protocol.

pip install ./containers/python
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from shiva_container import Tensor, model, serve

COLUMNS = 26
"""Label, score, box (x and y of its middle, width, height, angle), 4x4 pose, size; -1: unknown."""


@model(
    name="cells",
    batched=False,
    inputs=[Tensor("image", "UINT8", [-1, -1, 3])],
    outputs=[Tensor("found", "FP32", [-1, COLUMNS])],
)
def cells(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """A row for each part: 0 is red, 1 green, 2 blue."""
    rows = []
    for label in range(3):
        y, x = np.nonzero(image[:, :, label] > 200)
        if len(x) > 0:
            row = np.full(COLUMNS, -1, np.float32)
            left, top, right, bottom = x.min(), y.min(), x.max() + 1, y.max() + 1
            row[:7] = label, 1, (left + right) / 2, (top + bottom) / 2, right - left, bottom - top, 0
            rows.append(row)
    return np.array(rows, np.float32).reshape(-1, COLUMNS)


if __name__ == "__main__":
    serve()

"""A model that finds the squares of a picture, and one that reads what a square says.

A picture has an id, which is the value of all of its pixels, and squares. Each says the id of its
picture and its own number. So an answer shows if a region is taken of another picture, or an answer
given to another row. The second model also says how many files it has decoded.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from shiva_container import Image, Tensor, images, model, serve

SIDE = 32  # of a square, in pixels
decoded: list[int] = []
decode = images.decode


def counted(file: Any, *more: Any) -> Any:
    decoded.append(len(file))
    return decode(file, *more)


def find(image: Any) -> Any:
    """The squares of a picture, whose first pixel says how many there are, and its id."""
    count, low, high = (int(v) for v in image[0, 0])
    x = SIDE * (np.arange(count, dtype=np.float32)[:, None] + 1)
    return np.hstack([x, x * 0 + SIDE, x + SIDE, x * 0 + 2 * SIDE]), np.int64(low + 256 * high)


def read(image: Any) -> Any:
    """What the middle of each square says."""
    middle = image[:, SIDE // 2, SIDE // 2].astype(np.int64)
    says = np.stack([middle[:, 0] + 256 * middle[:, 1], middle[:, 2]], axis=1)
    return says, np.full(len(image), len(decoded), np.int64)


if sys.argv[1] == "find":
    model(
        name="find",
        inputs=[Image("image")],
        outputs=[
            Tensor("boxes", "FP32", [-1, 4], ragged="count"),
            Tensor("id", "INT64", [-1]),
            Tensor("count", "INT32", [-1]),
        ],
        per_row=True,
    )(find)
else:
    model(
        name="read",
        inputs=[Image("image", height=SIDE, width=SIDE, resize="stretch", regions=True)],
        outputs=[Tensor("says", "INT64", [-1, 2]), Tensor("decoded", "INT64", [-1])],
    )(read)
images.decode = counted
serve()

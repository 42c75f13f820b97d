"""The pixels of objects, as COCO writes them: JSON of {"size": [height, width], "counts": "..."}.

The counts are the lengths of runs, down the first column, then the second: of pixels outside, then
inside, and so on. pycocotools.mask.decode reads a mask.
"""

from __future__ import annotations

import math

import numpy as np

from .images import Fit
from .tensors import Array


def outlined(grids: Array, boxes: Array, size: tuple[int, int], fit: Fit) -> Array:
    """The mask of each object in the client's picture, as text.

    ``grids`` [n, rows, columns] lie over the network's picture of ``size``, height and width, and
    are positive where the object is. Nothing outside its box is.
    """
    edges = np.nan_to_num(fit.boxes(boxes))  # a picture on which a network overflows fails no other
    texts = [_mask(grid, box, size, fit) for grid, box in zip(grids, edges, strict=True)]
    return np.array([*texts, None], object)[:-1]


def _mask(grid: Array, box: Array, size: tuple[int, int], fit: Fit) -> str:
    # The pixels whose centres are in the box.
    left, top, right, bottom = (math.ceil(edge - 0.5) for edge in box)
    grid = np.nan_to_num(grid)
    columns = ((np.arange(left, right) + 0.5) * fit.scale_x + fit.left) * grid.shape[1] / size[1] - 0.5
    lines = _between(grid.T, columns)
    step = fit.scale_y * grid.shape[0] / size[0]  # lines of the grid for a row of pixels
    first = (0.5 * fit.scale_y + fit.top) * grid.shape[0] / size[0] - 0.5
    column, row = _turns(lines, first, step, top, bottom)
    # A run that ends at the bottom goes on at the top of the next column, and those without length
    # are none: what turns twice at a place does not.
    turns, times = np.unique((left + column) * fit.height + row, return_counts=True)
    counts = np.diff(turns[times % 2 == 1], prepend=0, append=fit.height * fit.width)
    return f'{{"size": [{fit.height}, {fit.width}], "counts": "{_text(counts[: len(counts) - (counts[-1] == 0)])}"}}'


def _between(lines: Array, at: Array) -> Array:
    """Values between the lines of a grid, by linear interpolation; beyond the ends, the end's."""
    at = at.clip(0, len(lines) - 1)
    low = at.astype(np.intp)
    high = np.minimum(low + 1, len(lines) - 1)
    part = (at - low).astype(np.float32)[:, None]
    found: Array = lines[low] * (1 - part) + lines[high] * part
    return found


def _turns(lines: Array, first: float, step: float, top: int, bottom: int) -> tuple[Array, Array]:
    """Where columns of pixels go from outside to inside or back, from ``top`` to ``bottom``: the
    columns, and the rows. ``lines`` are the values of each column at the lines of the grid; row 0
    of the pixels lies at ``first``, and the next rows at a ``step`` each. Values between two lines
    are linear, so that each turn is found without the pixels between."""
    inside = lines > 0
    column, line = np.nonzero(inside[:, 1:] != inside[:, :-1])
    before, after = lines[column, line].astype(np.float64), lines[column, line + 1].astype(np.float64)
    exact = (line + before / (before - after) - first) / step
    row = np.where(after > 0, np.floor(exact) + 1, np.ceil(exact)).clip(top, bottom).astype(np.int64)
    starts, ends = np.flatnonzero(inside[:, 0]), np.flatnonzero(inside[:, -1])
    return (
        np.concatenate([starts, column, ends]),
        np.concatenate([np.full(len(starts), top), row, np.full(len(ends), bottom)]),
    )


def _text(counts: Array) -> str:
    """COCO's compression: the difference to the run before the last, in digits of five bits, the
    lowest first; 32 says that another follows, and the digit ends with its sign."""
    left = counts.astype(np.int64)
    left[3:] -= counts[1:-2]
    digits = np.zeros((len(left), 7), np.uint8)
    more = np.ones(len(left), np.bool_)
    for place in range(digits.shape[1]):
        digit = left & 31
        left = left >> 5
        follows = np.where(digit & 16, left != -1, left != 0)
        digits[more, place] = (digit + 48 + 32 * follows)[more]
        more &= follows
    return digits[digits > 0].tobytes().decode().replace("\\", "\\\\")

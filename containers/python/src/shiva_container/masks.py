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
    texts = [_mask(grid, box, size, fit) for grid, box in zip(grids, fit.boxes(boxes), strict=True)]
    return np.array([*texts, None], object)[:-1]


def _mask(grid: Array, box: Array, size: tuple[int, int], fit: Fit) -> str:
    # The pixels whose centres are in the box.
    left, top, right, bottom = (math.ceil(edge - 0.5) for edge in box)
    rows = (np.arange(top, bottom) + 0.5) * fit.scale_y + fit.top
    columns = (np.arange(left, right) + 0.5) * fit.scale_x + fit.left
    rows, columns = rows * grid.shape[0] / size[0] - 0.5, columns * grid.shape[1] / size[1] - 0.5
    inside = _between(_between(grid, rows).T, columns) > 0
    counts = _counts(inside, left, top, fit.height, fit.width)
    return f'{{"size": [{fit.height}, {fit.width}], "counts": "{_text(counts)}"}}'


def _between(lines: Array, at: Array) -> Array:
    """Values between the lines of a grid, by linear interpolation; beyond the ends, the end's."""
    at = at.clip(0, len(lines) - 1)
    low = at.astype(np.intp)
    high = np.minimum(low + 1, len(lines) - 1)
    part = (at - low).astype(np.float32)[:, None]
    found: Array = lines[low] * (1 - part) + lines[high] * part
    return found


def _counts(inside: Array, left: int, top: int, height: int, width: int) -> Array:
    """The runs of a picture that is outside but for ``inside``, [columns, rows] from a place on."""
    edges = np.diff(inside.astype(np.int8), axis=1, prepend=0, append=0)
    column, row = np.nonzero(edges)
    turns = (left + column) * height + top + row
    # A run that ends at the bottom goes on at the top of the next column.
    same = np.flatnonzero(turns[1:] == turns[:-1])
    turns = np.delete(turns, np.concatenate([same, same + 1]))
    counts: Array = np.diff(turns, prepend=0, append=height * width)
    return counts[:-1] if counts[-1] == 0 else counts


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

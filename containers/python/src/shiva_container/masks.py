"""The pixels of objects, as COCO writes them: JSON of {"size": [height, width], "counts": "..."}.

The counts are the lengths of runs, down the first column, then the second: of pixels outside, then
inside, and so on. pycocotools.mask.decode reads a mask.
"""

from __future__ import annotations

import math

import numpy as np

from .images import Fit
from .regions import moved
from .tensors import Array


def outlined(grids: Array, boxes: Array, size: tuple[int, int], fit: Fit) -> Array:
    """The mask of each object in the client's picture, as text.

    ``grids`` [n, rows, columns] lie over the network's picture of ``size``, height and width, and
    are positive where the object is. Nothing outside its box is.
    """
    # A picture on which a network overflows fails no other. Beyond its picture it has seen nothing.
    seen = np.nan_to_num(boxes).clip(0, (size[1], size[0], size[1], size[0]))
    every = zip(grids, fit.boxes(seen), seen, strict=True)
    if fit.back:
        texts = [_turned(grid, around, box, size, fit) for grid, around, box in every]
    else:
        texts = [_mask(grid, box, size, fit) for grid, box, _ in every]
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
    return _coco(left + column, row, fit)


def _turned(grid: Array, around: Array, box: Array, size: tuple[int, int], fit: Fit) -> str:
    """The same for a region that is turned or in perspective, where no row of pixels is a line of
    the grid: each pixel ``around`` the box, which is the network's here, is looked up."""
    left, top, right, bottom = (math.ceil(edge - 0.5) for edge in around)
    there = np.linalg.inv(np.array(fit.back))
    grid = np.nan_to_num(grid)
    columns, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    y = np.arange(top, bottom) + 0.5
    for x in range(left, right):
        places = moved(there, np.stack([np.full(len(y), x + 0.5), y], axis=1))
        places = places * (fit.scale_x, fit.scale_y) + (fit.left, fit.top)
        inside = ((places >= box[:2]) & (places < box[2:])).all(axis=1)
        near = places * (grid.shape[1] / size[1], grid.shape[0] / size[0]) - 0.5
        edges = np.flatnonzero(np.diff((inside & (_at(grid, near) > 0)).astype(np.int8), prepend=0, append=0))
        columns.append(np.full(len(edges), x))
        rows.append(top + edges)
    return _coco(np.concatenate(columns), np.concatenate(rows), fit)


def _at(grid: Array, places: Array) -> Array:
    """Values between those of a grid, at places [n, 2] as x and y; beyond its edge, the edge's."""
    x, y = places.clip(0, (grid.shape[1] - 1, grid.shape[0] - 1)).T
    left, top = x.astype(np.intp), y.astype(np.intp)
    right, bottom = np.minimum(left + 1, grid.shape[1] - 1), np.minimum(top + 1, grid.shape[0] - 1)
    above = grid[top, left] * (1 - (x - left)) + grid[top, right] * (x - left)
    below = grid[bottom, left] * (1 - (x - left)) + grid[bottom, right] * (x - left)
    found: Array = above * (1 - (y - top)) + below * (y - top)
    return found


def _coco(column: Array, row: Array, fit: Fit) -> str:
    """The mask that goes from outside to inside or back at these pixels."""
    # A run that ends at the bottom goes on at the top of the next column, and those without length
    # are none: what turns twice at a place does not.
    turns, times = np.unique(column * fit.height + row, return_counts=True)
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

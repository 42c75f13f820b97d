"""Regions of pictures: where they are, the pixels that are cut there, and the way back.

A region is four corners, [4, 2] as x and y, in parts (0 to 1) of an upright picture: clockwise, and
the first is the top left of what is cut. So a region that begins with another corner of the same
box is the same cut, turned. Pixel 0 lies from 0 to 1: that holds for pictures and for cuts.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .pictures import PictureError, warped
from .tensors import Array

Corners = Sequence[tuple[float, float]]
"""Four points, x and y. With so few numbers Python is several times faster than NumPy."""
Back = tuple[tuple[float, ...], ...]
"""A perspective, three rows of three numbers: from places in a cut, as x, y and 1."""
SAME: Back = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
"""To the same places."""


@dataclass(frozen=True)
class Picture:
    """An upright picture, or a smaller one of it that a decoder has made."""

    pixels: Array
    """[height, width, channels]"""
    height: int
    """Of the picture itself."""
    width: int
    step: int = 1
    """Pixels of the picture for one of ``pixels``."""

    @functools.cached_property
    def origin(self) -> tuple[float, float]:
        """Where the picture begins in ``pixels``, as x and y.

        A smaller picture has whole pixels, of which the last of the file may lie partly beyond the
        picture. Turned upright, that may be the first.
        """
        rows, columns = self.pixels.strides[:2]
        beyond_x = self.pixels.shape[1] - self.width / self.step
        beyond_y = self.pixels.shape[0] - self.height / self.step
        return (beyond_x if columns < 0 else 0.0), (beyond_y if rows < 0 else 0.0)

    def back(self, found: Back) -> Back:
        """The same for a perspective to places in ``pixels``: to places in the picture."""
        step, (x, y) = self.step, self.origin
        (a, b, c), (d, e, f), (u, v, w) = found
        return (
            (step * (a - x * u), step * (b - x * v), step * (c - x * w)),
            (step * (d - y * u), step * (e - y * v), step * (f - y * w)),
            (u, v, w),
        )


class Cut(NamedTuple):
    """What was cut out of a picture."""

    pixels: Array
    """[height, width, channels]"""
    back: Back
    """To places in the picture."""


def checked(region: npt.ArrayLike) -> Corners:
    """The corners of a region, which is a box, [4] as x_min, y_min, x_max and y_max, or corners.

    What lies outside the picture is moved to its edge. PictureError if there is nothing to cut.
    """
    given = np.asarray(region, np.float64)
    if given.shape not in {(4,), (4, 2)}:
        raise PictureError(f"a region of shape {list(given.shape)}, expected a box, [4], or corners, [4, 2]")
    numbers = given.tolist()
    points = numbers if given.ndim == 2 else _rectangle(*numbers)
    corners = []
    for x, y in points:
        if not (math.isfinite(x) and math.isfinite(y)):
            raise PictureError(f"the region {_text(points)} has a number that is not finite")
        corners.append((_clipped(x), _clipped(y)))
    if _turns(corners) is not None:
        return corners
    for (x, y), (u, v), (s, t) in zip(corners, corners[1:] + corners[:1], corners[2:] + corners[:2], strict=True):
        if (u - x) * (t - v) - (v - y) * (s - u) <= 0:
            raise PictureError(
                f"the region {_text(points)} is empty in the picture, or its corners are not in clockwise order"
            )
    return corners


def _clipped(x: float) -> float:
    return 0.0 if x < 0 else min(x, 1.0)


def _text(corners: Corners) -> str:
    return " ".join(f"({x:.6g}, {y:.6g})" for x, y in corners)


def _rectangle(left: float, top: float, right: float, bottom: float) -> Corners:
    return (left, top), (right, top), (right, bottom), (left, bottom)


class Place(NamedTuple):
    """Where to cut, in pixels of the picture: a box and how often it is turned, or corners."""

    corners: Corners
    turns: int | None
    """By how many quarters the cut is turned left from an upright box; None: it is none."""

    @property
    def sides(self) -> tuple[float, float]:
        """The height and width of the cut."""
        a, b, c, d = self.corners
        return max(math.dist(a, d), math.dist(b, c)), max(math.dist(a, b), math.dist(d, c))


def placed(
    corners: Corners, height: int, width: int, margin: float = 0.0, proportions: float | None = None
) -> Place:
    """The place of a checked region in a picture of a size.

    It is wider by ``margin`` of its sides on each side. ``proportions`` is the height for one of
    the width that it has to have: then it is widened to them, and may reach beyond the picture, as
    may corners. Boxes end at the picture's edge otherwise.
    """
    pixels = [(x * width, y * height) for x, y in corners]
    turns = _turns(corners)
    if turns is None:
        u, v = _widths(Place(pixels, None).sides, margin, proportions)
        return Place(_grown(pixels, u, v), None)
    left, top, right, bottom = _box(pixels, turns)
    sides = (bottom - top, right - left)
    if proportions and turns % 2:
        proportions = 1 / proportions
    u, v = _widths(sides, margin, proportions)
    left, right = left - u * sides[1], right + u * sides[1]
    top, bottom = top - v * sides[0], bottom + v * sides[0]
    if not proportions:
        left, right, top, bottom = max(left, 0), min(right, width), max(top, 0), min(bottom, height)
    return Place(_rolled(_rectangle(left, top, right, bottom), turns), turns)


def _turns(corners: Corners) -> int | None:
    """At which of the corners an upright box begins; None if they are not those of one."""
    for turns in range(4):
        a, b, c, d = _rolled(corners, -turns)
        if a[0] == d[0] < b[0] == c[0] and a[1] == b[1] < c[1] == d[1]:
            return turns
    return None


def _rolled(points: Corners, turns: int) -> Corners:
    """What np.roll makes of them."""
    return [*points[-turns:], *points[:-turns]] if turns else points


def _box(corners: Corners, turns: int) -> tuple[float, float, float, float]:
    """The left, top, right and bottom edge of a box that begins at one of the corners."""
    return *corners[turns], *corners[turns - 2]


def _widths(sides: tuple[float, float], margin: float, proportions: float | None) -> tuple[float, float]:
    """What a region grows on each side, in parts of its width and of its height."""
    if proportions is None:
        return margin, margin
    height, width = (side * (1 + 2 * margin) for side in sides)
    u = max(height / proportions / width, 1) * (1 + 2 * margin) / 2 - 0.5
    v = max(width * proportions / height, 1) * (1 + 2 * margin) / 2 - 0.5
    return u, v


def _grown(corners: Corners, u: float, v: float) -> Corners:
    """Corners moved away from each other, along the lines between them."""
    if u == v == 0:
        return corners
    a, b, c, d = np.array(corners)
    at = [(-u, -v), (1 + u, -v), (1 + u, 1 + v), (-u, 1 + v)]
    grown = (a * (1 - x) * (1 - y) + b * x * (1 - y) + c * x * y + d * (1 - x) * y for x, y in at)
    return [(float(x), float(y)) for x, y in grown]


def cut(picture: Picture, place: Place, fill: int) -> Cut:
    """The pixels at a place, in as many as it has in ``picture.pixels``; ``fill`` beyond it.

    Those of an upright box are whole pixels of the picture, which are not copied. Others are
    bicubic. A cut has at most as many pixels as the picture, so that corners of which two lie far
    from the others on almost one line take no more memory than it.
    """
    pixels, step, (x, y) = picture.pixels, picture.step, picture.origin
    corners = [(across / step + x, down / step + y) for across, down in place.corners]
    if place.turns is not None and (box := _whole(_box(corners, place.turns), pixels.shape)):
        left, top, right, bottom = box
        made: Array = pixels[top:bottom, left:right]
        if place.turns:
            made = np.rot90(made, -place.turns)
        return Cut(made, picture.back(_onto(_rolled(_rectangle(*box), place.turns), *made.shape[:2])))
    height, width = (max(1, round(side / step)) for side in place.sides)
    shrink = min(1.0, math.sqrt(pixels.shape[0] * pixels.shape[1] / (height * width)))
    height, width = max(1, int(height * shrink)), max(1, int(width * shrink))
    back = _onto(corners, height, width)
    return Cut(warped(pixels, np.array(back), height, width, fill), picture.back(back))


def _whole(
    box: tuple[float, float, float, float], shape: tuple[int, ...]
) -> tuple[int, int, int, int] | None:
    """A box in whole pixels, of which it has at least one; None if it reaches beyond them."""
    across, down = _between(box[0], box[2], shape[1]), _between(box[1], box[3], shape[0])
    return (across[0], down[0], across[1], down[1]) if across and down else None


def _between(low: float, high: float, most: int) -> tuple[int, int] | None:
    first, end = round(low), round(high)
    if first < 0 or end > most:
        return None
    if first == end:
        first = min(int((low + high) / 2), most - 1)
        end = first + 1
    return first, end


def _onto(corners: Corners, height: int, width: int) -> Back:
    """The perspective from places in a cut of a size to those between its corners."""
    a, b, c, d = corners
    if a[0] + c[0] == b[0] + d[0] and a[1] + c[1] == b[1] + d[1]:  # no perspective: exactly
        return (
            ((b[0] - a[0]) / width, (d[0] - a[0]) / height, a[0]),
            ((b[1] - a[1]) / width, (d[1] - a[1]) / height, a[1]),
            (0.0, 0.0, 1.0),
        )
    rows, wanted = [], []
    for (u, v), (x, y) in zip(((0, 0), (1, 0), (1, 1), (0, 1)), corners, strict=True):
        rows += [[u, v, 1, 0, 0, 0, -x * u, -x * v], [0, 0, 0, u, v, 1, -y * u, -y * v]]
        wanted += [x, y]
    try:
        solved = np.linalg.solve(np.array(rows, np.float64), np.array(wanted, np.float64))
    except np.linalg.LinAlgError as e:
        raise PictureError(f"the corners {_text(corners)} are on one line") from e
    unit: Array = np.append(solved, 1.0).reshape(3, 3)
    far = [1, 1 + unit[2, 0], 1 + unit[2, 1], 1 + unit[2, 0] + unit[2, 1]]
    if min(far) < 1e-3 * max(far):
        raise PictureError(f"the corners {_text(corners)} are almost on one line")
    first, second, third = (unit / (width, height, 1)).tolist()
    return tuple(first), tuple(second), tuple(third)


def moved(back: npt.ArrayLike, points: Array) -> Array:
    """Places [..., 2] by a perspective, [3, 3]."""
    rows = np.asarray(back)
    whole = points @ rows[:, :2].T + rows[:, 2]
    result: Array = whole[..., :2] / whole[..., 2:]
    return result


def upright(back: Back) -> bool:
    """Whether a cut is a part of its picture as it is, or larger or smaller: not turned."""
    (right, down_x, _), (right_y, down, _), (far_x, far_y, _) = back
    return right > 0 and down > 0 and not (down_x or right_y or far_x or far_y)

"""Regions of pictures: where they are, the pixels that are cut there, and the way back.

A region is four corners, [4, 2] as x and y, in parts (0 to 1) of an upright picture: clockwise, and
the first is the top left of what is cut. So a region that begins with another corner of the same
box is the same cut, turned. Pixel 0 lies from 0 to 1: that holds for pictures and for cuts.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .pictures import PictureError, warped
from .tensors import Array


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
    def origin(self) -> Array:
        """Where the picture begins in ``pixels``, as x and y.

        A smaller picture has whole pixels, of which the last of the file may lie partly beyond the
        picture. Turned upright, that may be the first.
        """
        rows, columns = self.pixels.strides[:2]
        beyond_x = self.pixels.shape[1] - self.width / self.step
        beyond_y = self.pixels.shape[0] - self.height / self.step
        return np.array([beyond_x if columns < 0 else 0.0, beyond_y if rows < 0 else 0.0])

    @functools.cached_property
    def back(self) -> Array:
        """[3, 3]: from places in ``pixels``, as x, y and 1, to places in the picture."""
        left, top = -self.origin * self.step
        return np.array([[self.step, 0, left], [0, self.step, top], [0, 0, 1.0]])


class Cut(NamedTuple):
    """What was cut out of a picture."""

    pixels: Array
    """[height, width, channels]"""
    back: Array
    """[3, 3]: from places in it, as x, y and 1, to places in the picture."""


def checked(region: npt.ArrayLike) -> Array:
    """The corners of a region, which is a box, [4] as x_min, y_min, x_max and y_max, or corners.

    What lies outside the picture is moved to its edge. PictureError if there is nothing to cut.
    """
    given = np.asarray(region, np.float64)
    if given.shape == (4,):
        given = given[[[0, 1], [2, 1], [2, 3], [0, 3]]]
    if given.shape != (4, 2):
        raise PictureError(f"a region of shape {list(given.shape)}, expected a box, [4], or corners, [4, 2]")
    if not np.isfinite(given).all():
        raise PictureError(f"the region {_text(given)} has a number that is not finite")
    corners = given.clip(0, 1)
    points = corners.tolist()  # a few numbers: without NumPy they are faster
    for (x, y), (u, v), (s, t) in zip(points, points[1:] + points[:1], points[2:] + points[:2], strict=True):
        if (u - x) * (t - v) - (v - y) * (s - u) <= 0:
            raise PictureError(
                f"the region {_text(given)} is empty in the picture, or its corners are not in clockwise order"
            )
    return corners


def _text(corners: Array) -> str:
    return " ".join(f"({x:.6g}, {y:.6g})" for x, y in corners)


@dataclass(frozen=True)
class Place:
    """Where to cut, in pixels of the picture: a box and how often it is turned, or corners."""

    corners: Array
    """[4, 2]"""
    turns: int | None
    """By how many quarters the cut is turned left from an upright box; None: it is none."""

    @property
    def sides(self) -> tuple[float, float]:
        """The height and width of the cut."""
        a, b, c, d = self.corners.tolist()
        return max(math.dist(a, d), math.dist(b, c)), max(math.dist(a, b), math.dist(d, c))


def placed(
    corners: Array, height: int, width: int, margin: float = 0.0, proportions: float | None = None
) -> Place:
    """The place of a checked region in a picture of a size.

    It is wider by ``margin`` of its sides on each side. ``proportions`` is the height for one of
    the width that it has to have: then it is widened to them, and may reach beyond the picture, as
    may corners. Boxes end at the picture's edge otherwise.
    """
    turns = _turns(corners)
    if turns is None:
        pixels = corners * (width, height)
        u, v = _widths(Place(pixels, None).sides, margin, proportions)
        return Place(_grown(pixels, u, v), None)
    left, top, right, bottom = (edge * side for edge, side in zip(_box(corners), (width, height) * 2, strict=True))
    sides = (bottom - top, right - left)
    if proportions and turns % 2:
        proportions = 1 / proportions
    u, v = _widths(sides, margin, proportions)
    left, right = left - u * sides[1], right + u * sides[1]
    top, bottom = top - v * sides[0], bottom + v * sides[0]
    if not proportions:
        left, right, top, bottom = max(left, 0), min(right, width), max(top, 0), min(bottom, height)
    upright = [[left, top], [right, top], [right, bottom], [left, bottom]]
    return Place(np.array(_rolled(upright, turns)), turns)


def _turns(corners: Array) -> int | None:
    """At which of the corners an upright box begins; None if they are not those of one."""
    points = corners.tolist()
    for turns in range(4):
        a, b, c, d = _rolled(points, -turns)
        if a[0] == d[0] < b[0] == c[0] and a[1] == b[1] < c[1] == d[1]:
            return turns
    return None


def _rolled(points: list[list[float]], turns: int) -> list[list[float]]:
    """What np.roll makes of them."""
    return points[-turns:] + points[:-turns]


def _box(corners: Array) -> tuple[float, float, float, float]:
    """The left, top, right and bottom edge of the upright box around corners."""
    xs, ys = corners.T.tolist()
    return min(xs), min(ys), max(xs), max(ys)


def _widths(sides: tuple[float, float], margin: float, proportions: float | None) -> tuple[float, float]:
    """What a region grows on each side, in parts of its width and of its height."""
    if proportions is None:
        return margin, margin
    height, width = (side * (1 + 2 * margin) for side in sides)
    u = max(height / proportions / width, 1) * (1 + 2 * margin) / 2 - 0.5
    v = max(width * proportions / height, 1) * (1 + 2 * margin) / 2 - 0.5
    return u, v


def _grown(corners: Array, u: float, v: float) -> Array:
    """Corners moved away from each other, along the lines between them."""
    if u == v == 0:
        return corners
    a, b, c, d = corners
    at = [(-u, -v), (1 + u, -v), (1 + u, 1 + v), (-u, 1 + v)]
    return np.array([a * (1 - x) * (1 - y) + b * x * (1 - y) + c * x * y + d * (1 - x) * y for x, y in at])


def cut(picture: Picture, place: Place, fill: int) -> Cut:
    """The pixels at a place, in as many as it has in ``picture.pixels``; ``fill`` beyond it.

    Those of an upright box are whole pixels of the picture, which are not copied. Others are
    bicubic. A cut has at most as many pixels as the picture, so that corners of which two lie far
    from the others on almost one line take no more memory than it.
    """
    pixels, whole = picture.pixels, picture.back
    corners = place.corners / picture.step + picture.origin
    if place.turns is not None and (box := _whole(corners, pixels.shape)) is not None:
        left, top, right, bottom = box
        upright: list[list[float]] = [[left, top], [right, top], [right, bottom], [left, bottom]]
        made: Array = pixels[top:bottom, left:right]
        if place.turns:
            made = np.rot90(made, -place.turns)
        return Cut(made, whole @ _onto(np.array(_rolled(upright, place.turns), np.float64), *made.shape[:2]))
    height, width = (max(1, round(side / picture.step)) for side in place.sides)
    shrink = min(1.0, math.sqrt(pixels.shape[0] * pixels.shape[1] / (height * width)))
    height, width = max(1, int(height * shrink)), max(1, int(width * shrink))
    back = _onto(corners, height, width)
    return Cut(warped(pixels, back, height, width, fill), whole @ back)


def _whole(corners: Array, shape: tuple[int, ...]) -> tuple[int, int, int, int] | None:
    """A box in whole pixels, of which it has at least one; None if it reaches beyond them."""
    box = []
    left, top, right, bottom = _box(corners)
    for low, high, most in ((left, right, shape[1]), (top, bottom, shape[0])):
        first, end = round(low), round(high)
        if first < 0 or end > most:
            return None
        if first == end:
            first = min(int((low + high) / 2), most - 1)
            end = first + 1
        box.append((first, end))
    return box[0][0], box[1][0], box[0][1], box[1][1]


def _onto(corners: Array, height: int, width: int) -> Array:
    """The perspective, [3, 3], from places in a cut of a size to those between its corners."""
    a, b, c, d = corners.tolist()
    if a[0] + c[0] == b[0] + d[0] and a[1] + c[1] == b[1] + d[1]:  # no perspective: exactly
        return np.array([
            [(b[0] - a[0]) / width, (d[0] - a[0]) / height, a[0]],
            [(b[1] - a[1]) / width, (d[1] - a[1]) / height, a[1]],
            [0, 0, 1.0],
        ])
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
    return unit / (width, height, 1)


def moved(back: Array, points: Array) -> Array:
    """Places [..., 2] by a perspective."""
    whole = points @ back[:, :2].T + back[:, 2]
    result: Array = whole[..., :2] / whole[..., 2:]
    return result


def upright(back: Array) -> bool:
    """Whether a cut is a part of its picture as it is, or larger or smaller: not turned."""
    return not (back[0, 1] or back[1, 0] or back[2, 0] or back[2, 1]) and bool(back[0, 0] > 0 and back[1, 1] > 0)

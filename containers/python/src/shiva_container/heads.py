"""What detectors answer, read as objects in the pixels of the network.

A head is known by the task and the names that Ultralytics writes into its files, or by the shapes
of its outputs: YOLOX, SSD with TensorFlow's post-processing, and YOLO without its metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .detections import STRIDES, suppress, yolox_boxes
from .files.network import Network
from .files.told import literal
from .images import Fit
from .masks import outlined
from .tensors import Array, Tensor

SCORE, OVERLAP, MOST = 0.25, 0.7, 300
"""As Ultralytics: the least score, how much two boxes of a class may share, and the most boxes."""

DETECTING = ("detect", "segment", "pose", "obb")
"""The tasks whose answer is objects, in Ultralytics' words."""


@dataclass(frozen=True)
class Found:
    """The objects in a picture, by falling score."""

    boxes: Array
    """[n, 4] as x_min, y_min, x_max and y_max in the network's pixels."""
    scores: Array
    classes: Array
    more: Array
    """[n, ...]: what the head says of each object besides."""


@dataclass(frozen=True)
class Head:
    """How a network wants its picture, and how its outputs are read."""

    read: Callable[[Sequence[Array]], list[Found]]
    """The objects of each row."""
    resize: str = "letterbox"
    channels: str = "rgb"
    scale: float = 1 / 255
    """Of the pixels' values, where the network takes floating-point numbers."""
    more: Tensor | None = None
    """An output of the model besides boxes, scores and classes, and"""
    bring: Callable[[Found, Fit], Array] = lambda found, _: found.more
    """its value, in the client's pixels."""


def head(network: Network, task: str, height: int, width: int, classes: int) -> Head | None:
    """The head of a detector that takes pictures of a size, or None if its form is unknown.

    ``classes`` is the number of classes that have names; 0: it is not known.
    """
    if "task" in network.metadata or task != "detect":
        return _ultralytics(network, task, height, width, classes)
    shapes = [port.shape for port in network.outputs]
    if sorted(map(len, shapes)) in ([1, 2, 2, 3], [2, 2, 3]):
        return _ssd(network, height, width)
    if list(map(len, shapes)) != [3]:
        return None
    _, rows, columns = shapes[0]
    if height % STRIDES[-1] == 0 and width % STRIDES[-1] == 0:
        cells = sum((height // s) * (width // s) for s in STRIDES)
        if rows in (cells, -1) and (columns > 5 or columns == -1):
            return Head(lambda outputs: _yolox(outputs[0], height, width), channels="bgr", scale=1.0)
        if columns == cells and rows > 4:
            return _ultralytics(network, task, height, width, rows - 4)
    return _ultralytics(network, task, height, width, classes) if columns == 6 else None


def _ultralytics(network: Network, task: str, height: int, width: int, classes: int) -> Head | None:
    """YOLO as Ultralytics exports it: [rows, 4 + classes + more, cells], or [rows, boxes, 6 + more]
    where the network picks distinct objects itself. A segmenter has a grid of prototypes besides,
    [rows, more, height, width], of which each object is a sum."""
    if "detr" in (network.metadata.get("head", "") + network.metadata.get("description", "")).lower():
        return None  # its boxes are centre and sides, from 0 to 1
    place = {len(port.shape): at for at, port in enumerate(network.outputs)}
    if sorted(len(port.shape) for port in network.outputs) != ([3, 4] if task == "segment" else [3]):
        return None
    shape = network.outputs[place[3]].shape
    points = _points(network.metadata, shape[1] - 4 - (classes or 1))
    more = {"detect": 0, "obb": 1, "pose": points[0] * points[1]}.get(task)
    if more is None:
        more = network.outputs[place[4]].shape[1]
    picks = _picks(network.metadata, shape, classes, more)
    if more < 0 or picks is None:
        return None
    shares = network.platform == "tflite" and "task" in network.metadata
    last = (network.inputs[0].sizes or ("",))[-1] == 3
    if shares and (network.outputs[place[3]].datatype != "FP32" or (task == "segment" and last)):
        return None  # quantized, or with a grid in another order
    shares = shares and (last or not picks)

    def read(outputs: Sequence[Array]) -> list[Found]:
        rows = outputs[place[3]].astype(np.float32)
        if shares:
            _to_pixels(rows if picks else rows.transpose(0, 2, 1), points if task == "pose" else (0, 1), height, width)
        found = [_picked(row, task) if picks else _cells(row.T, len(row) - 4 - more, task) for row in rows]
        if task != "segment":
            return found
        grids = outputs[place[4]].astype(np.float32)
        return [replace(one, more=np.tensordot(one.more, grid, 1)) for one, grid in zip(found, grids, strict=True)]

    if task == "segment":
        return Head(
            read,
            more=_ragged("masks", "BYTES"),
            bring=lambda found, fit: outlined(found.more, found.boxes, (height, width), fit),
        )
    if task == "pose":
        return Head(
            read,
            more=_ragged("keypoints", "FP32", *points),
            bring=lambda found, fit: _placed(found.more, points, fit),
        )
    if task == "obb":
        corners = _ragged("corners", "FP32", 4, 2)
        return Head(read, more=corners, bring=lambda found, fit: fit.points(found.more, clip=False))
    return Head(read)


def _to_pixels(rows: Array, points: tuple[int, int], height: int, width: int) -> None:
    """Boxes, and points at the end, of which Ultralytics' LiteRT files say parts of the picture's
    sides, so that quantized ones keep their scores apart. Those that pick distinct objects
    themselves are in pixels already, except if converted by way of TensorFlow (NHWC)."""
    count, each = points
    columns = rows.shape[2]
    for axis, side in enumerate((width, height)):
        rows[:, :, axis:4:2] *= side
        if count > 0:
            rows[:, :, columns - count * each + axis :: each] *= side


def _ragged(name: str, datatype: str, *shape: int) -> Tensor:
    return Tensor(name, datatype, [-1, *shape], ragged="count")


def _picks(metadata: Mapping[str, str], shape: Sequence[int], classes: int, more: int) -> bool | None:
    """Whether a network picks distinct objects itself; None: its output has neither form."""
    told = literal(metadata.get("end2end", "")) is True or "'nms': True" in metadata.get("args", "")
    cells = shape[1] in (4 + classes + more, -1) if classes else shape[1] > 4 + more or shape[1] == -1
    if shape[2] in (6 + more, -1) if told else shape[2] == 6 + more and not (classes and cells):
        return True
    return False if cells and not told else None


def _points(metadata: Mapping[str, str], left: int) -> tuple[int, int]:
    """The points of an object, and the numbers of each: x, y and, if there are three, how visible
    it is. Without metadata, three for all that is left."""
    told = literal(metadata.get("kpt_shape", ""))
    if isinstance(told, list | tuple) and [type(one) for one in told] == [int, int] and told[1] in (2, 3):
        return told[0], told[1]
    return (left // 3, 3) if left > 0 and left % 3 == 0 else (-1, 3)


def _picked(row: Array, task: str) -> Found:
    """[boxes, 6 + more]: corners, score and class of distinct objects, then what else there is. A
    turned box is its centre and sides."""
    kept = row[row[:, 4] >= SCORE]
    kept = kept[np.argsort(-kept[:, 4], kind="stable")][:MOST]
    boxes, more = kept[:, :4], kept[:, 6:]
    if task == "obb":
        more = _turned(boxes, more[:, 0])
        boxes = _around(more)
    return Found(boxes, kept[:, 4], kept[:, 5].astype(np.int32), more)


def _cells(cells: Array, classes: int, task: str = "") -> Found:
    """[cells, 4 + classes + more]: centre, sides, a score for each class, and more."""
    return _distinct(cells[:, :4], cells[:, 4 : 4 + classes], cells[:, 4 + classes :], task)


def _yolox(output: Array, height: int, width: int) -> list[Found]:
    boxes, scores = yolox_boxes(output, width, height)
    return [_distinct(one, sure, sure[:, :0]) for one, sure in zip(boxes, scores, strict=True)]


def _distinct(boxes: Array, scores: Array, more: Array, task: str = "") -> Found:
    """Distinct objects, from boxes of centre and sides. Each class counts alone."""
    classes, best = scores.argmax(axis=1), scores.max(axis=1)
    keep = np.flatnonzero(best >= SCORE)
    order = keep[np.argsort(-best[keep], kind="stable")]
    boxes, more = boxes[order], more[order]
    if task == "obb":
        angles, more = more[:, 0], _turned(boxes, more[:, 0])
        chosen = _apart(boxes, angles, classes[order])
        corners = _around(more)
    else:
        x, y, w, h = boxes.T
        corners = np.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], axis=1)
        far = float(np.abs(corners).max(initial=0)) * 2 + 1
        # Apart from each other, boxes of different classes share nothing.
        chosen = suppress(corners + far * classes[order, None], OVERLAP, MOST)
    order = order[chosen]
    return Found(
        corners[chosen].astype(np.float32),
        best[order].astype(np.float32),
        classes[order].astype(np.int32),
        more[chosen].astype(np.float32),
    )


def _turned(boxes: Array, angles: Array) -> Array:
    """The corners [n, 4, 2] of boxes of centre and sides that are turned by angles, in radians and
    from the x axis to the y axis, in order around each box."""
    along = np.stack([np.cos(angles), np.sin(angles)], axis=1) * boxes[:, 2:3] / 2
    across = np.stack([-np.sin(angles), np.cos(angles)], axis=1) * boxes[:, 3:4] / 2
    signs = ((1, 1), (1, -1), (-1, -1), (-1, 1))
    return np.stack([boxes[:, :2] + u * along + v * across for u, v in signs], axis=1)


def _around(corners: Array) -> Array:
    """The upright boxes around turned ones."""
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)


def _apart(boxes: Array, angles: Array, classes: Array) -> list[int]:
    """The first turned boxes of which none shares more than OVERLAP with an earlier one of its
    class, as Ultralytics counts it: by the Hellinger distance of the normal distributions that have
    the boxes' centres and variances (Llerena et al., Gaussian Bounding Boxes)."""
    squares = boxes[:, 2:].astype(np.float64) ** 2 / 12
    cos, sin = np.cos(angles), np.sin(angles)
    xx, yy = (squares * np.stack([cos, sin], 1) ** 2).sum(1), (squares * np.stack([sin, cos], 1) ** 2).sum(1)
    xy = (squares[:, 0] - squares[:, 1]) * cos * sin
    area = np.sqrt((xx * yy - xy**2).clip(0))
    left = np.arange(len(boxes))
    chosen: list[int] = []
    while len(left) > 0 and len(chosen) < MOST:
        first, left = int(left[0]), left[1:]
        chosen.append(first)
        a, b, c = xx[first] + xx[left], yy[first] + yy[left], xy[first] + xy[left]
        dx, dy = (boxes[first, :2] - boxes[left, :2]).T.astype(np.float64)
        both = a * b - c**2 + 1e-7
        distance = (a * dy**2 + b * dx**2 - 2 * c * dx * dy) / both / 4
        distance += np.log(both / (4 * area[first] * area[left] + 1e-7) + 1e-7) / 2
        shared = 1 - np.sqrt(1 - np.exp(-distance.clip(1e-7, 100)) + 1e-7)
        left = left[(shared < OVERLAP) | (classes[left] != classes[first])]
    return chosen


def _placed(more: Array, points: tuple[int, int], fit: Fit) -> Array:
    """Points in the client's pixels; how visible they are stays."""
    whole = more.reshape(-1, *points)
    return np.concatenate([fit.points(whole[..., :2]), whole[..., 2:]], axis=2)


def _ssd(network: Network, height: int, width: int) -> Head | None:
    """TensorFlow's post-processing, which answers boxes from 0 to 1, classes, scores and, in most
    files, how many are valid. The order differs between converters."""
    if network.inputs[0].datatype != "UINT8":
        return None  # others differ in how they scale pixels
    named = next((n for n, port in enumerate(network.outputs) if "score" in port.name.lower()), None)
    return Head(lambda outputs: _valid(outputs, named, height, width), resize="stretch")


def _valid(outputs: Sequence[Array], named: int | None, height: int, width: int) -> list[Found]:
    """Boxes of y_min, x_min, y_max and x_max. ``named`` are the scores, if a name tells."""
    boxes = next(one for one in outputs if one.ndim == 3)
    counts = next((one for one in outputs if one.ndim == 1), np.full(len(boxes), boxes.shape[1]))
    classes, scores = (one for one in outputs if one.ndim == 2)
    if classes is outputs[named] if named is not None else _likely(classes) > _likely(scores):
        classes, scores = scores, classes
    found = []
    for row, valid in enumerate(counts):
        n = int(valid)
        kept = np.flatnonzero(scores[row, :n] >= SCORE)
        kept = kept[np.argsort(-scores[row, kept], kind="stable")]
        corners = boxes[row, kept][:, [1, 0, 3, 2]] * np.array([width, height, width, height], np.float32)
        found.append(
            Found(corners.astype(np.float32), scores[row, kept], classes[row, kept].astype(np.int32), corners[:, :0])
        )
    return found


def _likely(array: Array) -> tuple[bool, bool]:
    """How far values look like scores from 0 to 1, not like classes, which are whole numbers."""
    return bool((array != np.floor(array)).any()), bool(array.max(initial=0) <= 1)

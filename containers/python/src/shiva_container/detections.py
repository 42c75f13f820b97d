"""The answers of object detectors, made into the form that Frigate reads.

Every function takes the outputs of a network for a batch, and returns float32 of shape
[rows, 20, 6]: for each image twenty rows of class, score, y_min, x_min, y_max and x_max, the
coordinates from 0 to 1 of the image, by falling score; rows that are not needed are zero.

    from shiva_container import Tensor, model, serve
    from shiva_container.detections import ROWS, yologeneric

    @model(
        name="yolo",
        inputs=[Tensor("images", "FP32", [-1, 3, 320, 320])],
        outputs=[Tensor("detections", "FP32", [-1, *ROWS])],
    )
    def yolo(images):
        return yologeneric(network.run(None, {"images": images})[0], 320, 320)

Overlapping boxes are one object whatever their classes are, as in Frigate's own detectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

ROWS = (20, 6)
"""The shape of the detections of one image."""

STRIDES = (8, 16, 32)
"""The side of YOLOX's cells in pixels, for each of its grids."""


def ssd(boxes: Floats, classes: Floats, scores: Floats, count: Iterable[float] | None = None) -> Floats:
    """Detections of networks that end in TensorFlow's detection post-processing, as SSD MobileNet.

    boxes is [rows, n, 4] of y_min, x_min, y_max and x_max from 0 to 1, classes and scores are
    [rows, n], and count tells how many of the n are valid in each row; None: all.
    """
    _expect("boxes", boxes, 3, 4)
    n = boxes.shape[1]
    for name, array in (("classes", classes), ("scores", scores)):
        if array.shape != boxes.shape[:2]:
            raise ValueError(f"{name}: expected the shape {list(boxes.shape[:2])} of boxes, got {list(array.shape)}")
    counts = [n] * len(boxes) if count is None else [int(c) for c in np.ravel(np.asarray(count))]
    if len(counts) != len(boxes):
        raise ValueError(f"count: expected one for each of {len(boxes)} rows, got {len(counts)}")
    found = [(b[:c], k[:c], s[:c]) for b, k, s, c in zip(boxes, classes, scores, counts, strict=True)]
    return _rows(found)


def yologeneric(output: Floats, width: int, height: int, score: float = 0.4, overlap: float = 0.4) -> Floats:
    """Detections of YOLO as Ultralytics exports it from version 8 on: Frigate's yolo-generic.

    output is [rows, 4 + classes, cells], or with the last two dimensions swapped: the centre, width
    and height of a box in pixels of the image, and the score of each class. Boxes of a lower score
    are left out, and of boxes that share more than overlap (intersection over union) all but the
    one of the highest score.
    """
    if output.ndim != 3 or min(output.shape[1:]) < 5:
        raise ValueError(f"output: expected [rows, 4 + classes, cells], got {list(output.shape)}")
    if output.shape[1] < output.shape[2]:  # there are more cells than classes
        output = output.transpose(0, 2, 1)
    return _rows(
        _distinct(cells[:, :4], cells[:, 4:], width, height, score, overlap) for cells in output.astype(np.float32)
    )


def yolox(output: Floats, width: int, height: int, score: float = 0.3, overlap: float = 0.45) -> Floats:
    """Detections of YOLOX as exported to ONNX, for an image of width x height pixels.

    output is [rows, cells, 5 + classes]: a box as its offset in a cell of the grids of 8, 16 and 32
    pixels and the logarithms of its sides, the score for any object, and the scores of the classes.
    For score and overlap see yologeneric.
    """
    return _rows(
        _distinct(b, s, width, height, score, overlap) for b, s in zip(*yolox_boxes(output, width, height), strict=True)
    )


def yolox_boxes(output: Floats, width: int, height: int) -> tuple[Floats, Floats]:
    """The boxes of all cells of YOLOX's output, [rows, cells, 4] as centre, width and height in
    pixels, and their scores for each class, [rows, cells, classes]."""
    grid, stride = _grids(width, height)
    if output.ndim != 3 or output.shape[1] != len(grid) or output.shape[2] < 6:
        raise ValueError(
            f"output: expected [rows, {len(grid)}, 5 + classes] for {width} x {height} pixels, got {list(output.shape)}"
        )
    output = output.astype(np.float32)
    centres = (output[..., :2] + grid) * stride
    sides = np.exp(output[..., 2:4]) * stride
    return np.concatenate([centres, sides], axis=2), output[..., 4:5] * output[..., 5:]


_Found = tuple[Floats, Floats, Floats]
"""Boxes of y_min, x_min, y_max and x_max, their classes and their scores."""


def _distinct(boxes: Floats, scores: Floats, width: int, height: int, least: float, overlap: float) -> _Found:
    """The boxes of distinct objects, from boxes of centre, width and height in pixels."""
    classes, best = scores.argmax(axis=1), scores.max(axis=1)
    keep = np.flatnonzero(best >= least)
    order = keep[np.argsort(-best[keep], kind="stable")]
    x, y, w, h = boxes[order].T
    corners = np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], axis=1)
    chosen = suppress(corners, overlap)
    corners = corners[chosen] / np.array([height, width, height, width], np.float32)
    order = order[chosen]
    return corners.clip(0, 1), classes[order].astype(np.float32), best[order]


def suppress(boxes: Floats, overlap: float, most: int = ROWS[0]) -> list[int]:
    """The first boxes of which none shares more than overlap with an earlier one.

    boxes is [n, 4] of y_min, x_min, y_max and x_max, in any unit. Returns at most ``most`` indices,
    in order.
    """
    low, high = boxes[:, :2], boxes[:, 2:]
    area = (high - low).clip(0).prod(axis=1)
    left = np.arange(len(boxes))
    chosen: list[int] = []
    while len(left) > 0 and len(chosen) < most:
        first, left = int(left[0]), left[1:]
        chosen.append(first)
        sides = (np.minimum(high[first], high[left]) - np.maximum(low[first], low[left])).clip(0)
        shared = sides.prod(axis=1)
        union = area[first] + area[left] - shared
        left = left[shared <= overlap * union]
    return chosen


def _grids(width: int, height: int) -> tuple[Floats, Floats]:
    """The corner, in cells, and the stride of every cell of YOLOX, in the order of its output."""
    corners, strides = [], []
    for s in STRIDES:
        if width % s or height % s:
            raise ValueError(f"YOLOX takes images whose sides are multiples of {STRIDES[-1]}, got {width} x {height}")
        y, x = np.mgrid[: height // s, : width // s]
        corners.append(np.stack([x.ravel(), y.ravel()], axis=1))
        strides.append(np.full((x.size, 1), s))
    return np.concatenate(corners).astype(np.float32), np.concatenate(strides).astype(np.float32)


def _rows(images: Iterable[_Found]) -> Floats:
    """The rows of each image, sorted and filled up."""
    out = []
    for boxes, classes, scores in images:
        order = np.argsort(-scores, kind="stable")[: ROWS[0]]
        order = order[scores[order] > 0]
        rows = np.zeros(ROWS, np.float32)
        used = rows[: len(order)]
        used[:, 0], used[:, 1], used[:, 2:] = classes[order], scores[order], boxes[order]
        out.append(rows)
    return np.stack(out) if out else np.zeros((0, *ROWS), np.float32)


def _expect(name: str, array: Floats, dimensions: int, last: int) -> None:
    if array.ndim != dimensions or array.shape[-1] != last:
        raise ValueError(f"{name}: expected {dimensions} dimensions, the last of {last}, got {list(array.shape)}")


__all__: Sequence[str] = ["ROWS", "ssd", "suppress", "yologeneric", "yolox", "yolox_boxes"]

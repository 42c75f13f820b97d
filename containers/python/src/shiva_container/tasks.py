"""Networks whose files say what they are for, as models of pictures: boxes with names come out.

Ultralytics writes the task, the names of the classes, and the size of its pictures into the ONNX
files that it exports. Other detectors are known by the shapes of their outputs, if the user says
that they are detectors: SSD's post-processing of TensorFlow, and YOLOX.

The model gets JPEG or PNG files or pixels, of any size. A detector answers, for each picture,
``boxes`` as x_min, y_min, x_max and y_max in its pixels, ``scores``, ``classes`` and ``labels``, by
falling score, ``count`` of each; a classifier answers ``scores`` with the classes' names as labels.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .detections import STRIDES, suppress, yolox_boxes
from .files.network import Network, Port, Unusable
from .images import Fit, Image
from .models import Batch, Model, model
from .proof import Verdict, Way
from .served import executing
from .tensors import DATATYPES, Array, Tensor

TASKS = ("detect", "classify")

SCORE, OVERLAP, MOST = 0.25, 0.7, 300
"""As Ultralytics: the least score, how much two boxes of a class may share, and the most boxes."""

SIDE = 640
"""The height and width where neither the network nor its metadata has one."""

Found = tuple[Array, Array, Array]
"""Corners x_min, y_min, x_max, y_max in the network's pixels, scores, and classes."""


@dataclass(frozen=True)
class Form:
    """How a network wants its picture, and how its outputs are read."""

    task: str
    height: int
    width: int
    layout: str
    """Of the network's input: "nchw" or "nhwc"."""
    channels: str
    resize: str
    scale: float
    """Of the pixels' values, where the network takes floating-point numbers."""
    names: dict[int, str]
    read: Callable[[Sequence[Array]], list[Any]]
    """The findings of each row: a Found, or the scores of the classes."""

    def name(self, kind: int) -> str:
        """The name of a class, or its number."""
        return self.names.get(kind, str(kind))


def form(network: Network, verdict: Verdict, path: Path, task: str = "") -> Form | None:
    """What the network in a file is for: ``task``, or what its metadata says; None: it is unknown,
    or a picture cannot be executed without others.

    Raises Unusable if the user has named a task, and the network has no known form of it.
    """
    found = _form(network, path, task or network.metadata.get("task", "")) if _takes_one(network, verdict) else None
    if found is None and task:
        shapes = "; ".join(map(str, (*network.inputs, *network.outputs)))
        raise Unusable(
            f"{path}: no known form of {task}: expected one picture in, and out what Ultralytics' YOLO, YOLOX or SSD "
            "answer, or the scores of classes; "
            f"it has {shapes}; serve it raw, or by a Python file"
        )
    return found


def _takes_one(network: Network, verdict: Verdict) -> bool:
    """Whether one row can be executed, and not only as many as the file says."""
    first = [(port.sizes or ("",))[0] for port in network.inputs]
    return verdict.way is Way.PADDED or all(size == 1 or isinstance(size, str) for size in first)


def _form(network: Network, path: Path, task: str) -> Form | None:
    if task not in TASKS or len(network.inputs) != 1:
        return None
    if task == "classify" and [len(port.shape) for port in network.outputs] != [2]:
        return None
    picture = network.inputs[0]
    layout = _layout(picture)
    if not layout:
        return None
    names = _names(network, path)
    height, width = _size(network, picture, layout)
    ultralytics = "task" in network.metadata
    read = _classes if task == "classify" else _detector(network, height, width, len(names), ultralytics)
    if read is None:
        return None
    yolox = not ultralytics and task == "detect" and len(network.outputs) == 1
    return Form(
        task=task,
        height=height,
        width=width,
        layout=layout,
        channels="bgr" if yolox else "rgb",
        resize="letterbox" if task == "detect" and len(network.outputs) == 1 else "stretch",
        scale=1.0 if yolox else 1 / 255,
        names=names,
        read=read,
    )


def _layout(port: Port) -> str:
    sizes = port.sizes or ()
    if len(sizes) != 4 or port.datatype not in ("FP32", "FP16", "UINT8"):
        return ""
    return "nchw" if sizes[1] == 3 else "nhwc" if sizes[3] == 3 else ""


def _size(network: Network, picture: Port, layout: str) -> tuple[int, int]:
    sizes = (picture.sizes or ())[2:4] if layout == "nchw" else (picture.sizes or ())[1:3]
    told = _literal(network.metadata.get("imgsz", ""))
    if isinstance(told, int):
        told = [told, told]
    if not isinstance(told, list | tuple) or [type(one) for one in told] != [int, int]:
        told = [SIDE, SIDE]
    height, width = (size if isinstance(size, int) else other for size, other in zip(sizes, told, strict=True))
    return height, width


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None


def _names(network: Network, path: Path) -> dict[int, str]:
    """The classes' names: of the metadata, or of a file beside the network with one in a line."""
    told = _literal(network.metadata.get("names", ""))
    if isinstance(told, list | tuple):
        told = dict(enumerate(told))
    if isinstance(told, dict) and all(isinstance(key, int) for key in told):
        return {key: str(value) for key, value in told.items()}
    for beside in (path.with_suffix(".labels.txt"), path.with_name("labels.txt")):
        if beside.is_file():
            return dict(enumerate(line.strip() for line in beside.read_text("utf-8", "replace").splitlines()))
    return {}


def _detector(
    network: Network, height: int, width: int, classes: int, ultralytics: bool
) -> Callable[[Sequence[Array]], list[Found]] | None:
    """How the outputs of a detector are read."""
    shapes = [port.shape for port in network.outputs]
    if len(shapes) == 1 and len(shapes[0]) == 3:
        if ultralytics:
            if "detr" in (network.metadata.get("head", "") + network.metadata.get("description", "")).lower():
                return None  # its boxes are centre and sides, from 0 to 1
            if shapes[0][1] not in (4 + classes, -1) and shapes[0][2] == 6:
                return lambda outputs: [_ended(row) for row in outputs[0]]
            if classes and shapes[0][1] not in (4 + classes, -1):
                return None
            return lambda outputs: [_cells(row) for row in outputs[0]]
        if height % STRIDES[-1] == 0 and width % STRIDES[-1] == 0:
            cells = sum((height // s) * (width // s) for s in STRIDES)
            if shapes[0][1] in (cells, -1) and (shapes[0][2] > 5 or shapes[0][2] == -1):
                return lambda outputs: [
                    _distinct(*one) for one in zip(*yolox_boxes(outputs[0], width, height), strict=True)
                ]
        return None
    bytes_in = network.inputs[0].datatype == "UINT8"  # others differ in how they scale pixels
    if bytes_in and sorted(map(len, shapes)) == [1, 2, 2, 3]:
        named = next((n for n, port in enumerate(network.outputs) if "score" in port.name.lower()), None)
        return lambda outputs: _ssd(outputs, named, height, width)
    return None


def _cells(row: Array) -> Found:
    """[4 + classes, cells]: centre, sides and a score for each class, as Ultralytics exports it."""
    cells = row.astype(np.float32).T
    return _distinct(cells[:, :4], cells[:, 4:])


def _ended(row: Array) -> Found:
    """[boxes, 6]: corners, score and class of distinct objects, as YOLO answers end to end."""
    kept = row[row[:, 4] >= SCORE].astype(np.float32)
    kept = kept[np.argsort(-kept[:, 4], kind="stable")][:MOST]
    return kept[:, :4], kept[:, 4], kept[:, 5].astype(np.int32)


def _distinct(boxes: Array, scores: Array) -> Found:
    """The boxes of distinct objects, from boxes of centre and sides. Each class counts alone."""
    classes, best = scores.argmax(axis=1), scores.max(axis=1)
    keep = np.flatnonzero(best >= SCORE)
    order = keep[np.argsort(-best[keep], kind="stable")]
    x, y, w, h = boxes[order].T
    corners = np.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], axis=1)
    far = float(np.abs(corners).max(initial=0)) * 2 + 1
    apart = corners + far * classes[order, None]  # boxes of different classes share nothing
    chosen = suppress(apart, OVERLAP, MOST)
    order = order[chosen]
    return corners[chosen].astype(np.float32), best[order].astype(np.float32), classes[order].astype(np.int32)


def _ssd(outputs: Sequence[Array], named: int | None, height: int, width: int) -> list[Found]:
    """TensorFlow's post-processing: boxes of y_min, x_min, y_max, x_max from 0 to 1, classes,
    scores, and how many are valid. The order differs between converters; ``named`` are the scores,
    if a name tells."""
    boxes = next(one for one in outputs if one.ndim == 3)
    count = next(one for one in outputs if one.ndim == 1)
    classes, scores = (one for one in outputs if one.ndim == 2)
    if classes is outputs[named] if named is not None else _likely(classes) > _likely(scores):
        classes, scores = scores, classes
    found = []
    for row, valid in enumerate(count):
        n = int(valid)
        kept = np.flatnonzero(scores[row, :n] >= SCORE)
        kept = kept[np.argsort(-scores[row, kept], kind="stable")]
        corners = boxes[row, kept][:, [1, 0, 3, 2]] * np.array([width, height, width, height], np.float32)
        found.append((corners.astype(np.float32), scores[row, kept], classes[row, kept].astype(np.int32)))
    return found


def _likely(array: Array) -> tuple[bool, bool]:
    """How far values look like scores from 0 to 1, not like classes, which are whole numbers."""
    return bool((array != np.floor(array)).any()), bool(array.max(initial=0) <= 1)


def _classes(outputs: Sequence[Array]) -> list[Any]:
    return list(outputs[0].astype(np.float32))


def seeing(network: Network, verdict: Verdict, form: Form, *, name: str, version: str = "1") -> Model[..., Any]:
    """The model that answers what is in pictures."""
    declare = model(
        name=name,
        version=version,
        platform=network.platform,
        batched=True,
        max_batch=verdict.most,
        inputs=[
            Image("image", height=form.height, width=form.width, channels=form.channels, resize=form.resize, fill=114)
        ],
        outputs=_declared(network, form),
        parameters={"proof": str(verdict), "device": network.device, "task": form.task},
    )
    execute = executing(network, verdict)

    def see(image: Array, batch: Batch) -> Any:
        found = form.read(execute([_wanted(image, network.inputs[0], form)], batch))
        if form.task == "classify":
            return np.stack(found)
        fits: Sequence[Fit] = batch.fits["image"]
        boxes = [fit.boxes(corners) for fit, (corners, _, _) in zip(fits, found, strict=True)]
        scores, classes = [scores for _, scores, _ in found], [classes for _, _, classes in found]
        return boxes, scores, classes, [np.array([*map(form.name, row), None], object)[:-1] for row in classes]

    return declare(see)


def _declared(network: Network, form: Form) -> list[Tensor]:
    """The outputs of the model."""
    if form.task == "classify":
        classes = network.outputs[0].shape[-1]
        return [Tensor("scores", "FP32", [-1, classes], labels=[form.name(i) for i in range(classes)])]
    return [
        Tensor("boxes", "FP32", [-1, 4], ragged="count"),
        Tensor("scores", "FP32", [-1], ragged="count"),
        Tensor("classes", "INT32", [-1], ragged="count"),
        Tensor("labels", "BYTES", [-1], ragged="count"),
        Tensor("count", "INT32", [-1]),
    ]


def _wanted(pixels: Array, port: Port, form: Form) -> Array:
    """Pixels [rows, height, width, 3] in the order, type and scale of the network's input."""
    laid = pixels if form.layout == "nhwc" else pixels.transpose(0, 3, 1, 2)
    if port.datatype == "UINT8":
        return np.ascontiguousarray(laid)
    scaled = laid.astype(np.float32, order="C")
    scaled *= np.float32(form.scale)
    return scaled.astype(DATATYPES[port.datatype], copy=False)

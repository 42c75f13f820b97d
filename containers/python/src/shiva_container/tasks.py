"""Networks whose files say what they are for, as models of pictures: boxes with names come out.

Ultralytics writes the task, the names of the classes, and the size of its pictures into the ONNX
files that it exports. Other detectors are known by the shapes of their outputs, if the user says
what they are for: see heads.py.

The model gets JPEG or PNG files or pixels, of any size. A detector answers, for each picture,
``boxes`` as x_min, y_min, x_max and y_max in its pixels, ``scores``, ``classes`` and ``labels``, by
falling score, ``count`` of each, and ``masks``, ``keypoints`` or ``corners`` where the task has
them; a classifier answers ``scores`` with the classes' names as labels.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .files.network import Network, Port, Unusable
from .files.told import literal
from .heads import DETECTING, Head, head
from .images import Fit, Image
from .models import Batch, Model, model
from .proof import Verdict, Way
from .served import executing
from .tensors import DATATYPES, Array, Tensor

log = logging.getLogger("shiva_container.files")

TASKS = (*DETECTING, "classify")

SIDE = 640
"""The height and width where neither the network nor its metadata has one."""

CLASSIFYING = Head(lambda _: [], resize="crop")
"""Classifiers are trained, by Ultralytics as by others, on the middle of pictures."""


@dataclass(frozen=True)
class Form:
    """What a network is for, and the picture that it takes."""

    task: str
    height: int
    width: int
    layout: str
    """Of the network's input: "nchw" or "nhwc"."""
    names: dict[int, str]
    head: Head

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
    classes = network.outputs[0].shape[-1]
    if task == "classify" and names and classes not in (len(names), -1):
        log.warning("%s: there are %d names for its %d classes", path, len(names), classes)
    read = CLASSIFYING if task == "classify" else head(network, task, height, width, len(names))
    return None if read is None else Form(task, height, width, layout, names, read)


def _layout(port: Port) -> str:
    sizes = port.sizes or ()
    if len(sizes) != 4 or port.datatype not in ("FP32", "FP16", "UINT8"):
        return ""
    return "nchw" if sizes[1] == 3 else "nhwc" if sizes[3] == 3 else ""


def _size(network: Network, picture: Port, layout: str) -> tuple[int, int]:
    sizes = (picture.sizes or ())[2:4] if layout == "nchw" else (picture.sizes or ())[1:3]
    told = literal(network.metadata.get("imgsz", ""))
    if isinstance(told, int):
        told = [told, told]
    if not isinstance(told, list | tuple) or [type(one) for one in told] != [int, int]:
        told = [SIDE, SIDE]
    height, width = (size if isinstance(size, int) else other for size, other in zip(sizes, told, strict=True))
    return height, width


def _names(network: Network, path: Path) -> dict[int, str]:
    """The classes' names: of the network's own file beside it, of the metadata, or of the file of
    names of all networks of the folder."""
    if own := _lines(path.with_suffix(".labels.txt")):
        return own
    told = literal(network.metadata.get("names", ""))
    if isinstance(told, list | tuple):
        told = dict(enumerate(told))
    if isinstance(told, dict) and all(isinstance(key, int) for key in told):
        return {key: str(value) for key, value in told.items()}
    return _lines(path.with_name("labels.txt"))


def _lines(path: Path) -> dict[int, str]:
    """The names in a file with one in a line; none if there is no file."""
    if not path.is_file():
        return {}
    return dict(enumerate(line.strip() for line in path.read_text("utf-8", "replace").splitlines()))


def seeing(network: Network, verdict: Verdict, form: Form, *, name: str, version: str = "1") -> Model[..., Any]:
    """The model that answers what is in pictures."""
    head = form.head
    picture = Image(
        "image", form.height, form.width, channels=head.channels, resize=head.resize, fill=114, regions=True
    )
    declare = model(
        name=name,
        version=version,
        platform=network.platform,
        batched=True,
        max_batch=verdict.most,
        inputs=[picture],
        outputs=_declared(network, form),
        parameters={"proof": str(verdict), "device": network.device, "task": form.task},
    )
    execute = executing(network, verdict)

    def see(image: Array, batch: Batch) -> Any:
        answers = execute([_wanted(image, network.inputs[0], form)], batch)
        if form.task == "classify":
            return answers[0].astype(np.float32)
        fits: Sequence[Fit] = batch.fits["image"]
        rows = list(zip(head.read(answers), fits, strict=True))
        outputs = [
            [fit.boxes(found.boxes) for found, fit in rows],
            [found.scores for found, _ in rows],
            [found.classes for found, _ in rows],
            [np.array([*map(form.name, found.classes), None], object)[:-1] for found, _ in rows],
        ]
        return (*outputs, [head.bring(found, fit) for found, fit in rows]) if head.more else tuple(outputs)

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
        *([form.head.more] if form.head.more else []),
        Tensor("count", "INT32", [-1]),
    ]


def _wanted(pixels: Array, port: Port, form: Form) -> Array:
    """Pixels [rows, height, width, 3] in the order, type and scale of the network's input."""
    laid = pixels if form.layout == "nhwc" else pixels.transpose(0, 3, 1, 2)
    if port.datatype == "UINT8":
        return np.ascontiguousarray(laid)
    scaled = laid.astype(np.float32, order="C")
    scaled *= np.float32(form.head.scale)
    return scaled.astype(DATATYPES[port.datatype], copy=False)

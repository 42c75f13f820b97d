"""Make a network that says whether a dot has a white mark in its middle, and a picture of dots.

pip install onnx pillow
python examples/files/marks.py marks.onnx scene.png

It was never trained: white is where the least of three colours is high.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser
from PIL import Image, ImageDraw

NAMES = {0: "plain", 1: "marked"}
SIDE = 32

GRAPH = f"""
<ir_version: 8, opset_import: ["": 17]>
marks (float[batch, 3, {SIDE}, {SIDE}] images) => (float[batch, {len(NAMES)}] scores)
{{
  white = ReduceMin <axes = [1], keepdims = 0> (images)
  inside = Mul (white, middle)
  mean = ReduceSum <keepdims = 1> (inside, sides)
  flat = Squeeze (mean, last)
  steep = Mul (flat, signs)
  both = Add (steep, offsets)
  scores = Softmax <axis = 1> (both)
}}
"""


def network() -> onnx.ModelProto:
    """The network, with what it is for in its metadata, as Ultralytics exports classifiers."""
    place = np.abs(np.arange(SIDE) - (SIDE - 1) / 2) < SIDE / 16
    middle = np.outer(place, place) / place.sum() ** 2
    made = parser.parse_model(GRAPH)
    weights = {"middle": middle, "signs": np.array([-20.0, 20.0]), "offsets": np.array([10.0, -10.0])}
    axes = {"sides": np.array([1, 2]), "last": np.array([2])}
    for name, value in weights.items():
        made.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    for name, value in axes.items():
        made.graph.initializer.append(numpy_helper.from_array(value, name))
    described = {"task": "classify", "imgsz": [SIDE, SIDE], "names": NAMES}
    onnx.helper.set_model_props(made, {key: str(value) for key, value in described.items()})
    onnx.checker.check_model(made, full_check=True)
    return made


def scene() -> Image.Image:
    """Dots in three colours, some of them with a mark."""
    picture = Image.new("RGB", (480, 320), (70, 70, 70))
    draw = ImageDraw.Draw(picture)
    dots = [(80, 80, "red", True), (240, 90, "lime", False), (390, 70, "blue", True), (150, 230, "red", False)]
    for x, y, colour, marked in [*dots, (320, 220, "lime", True)]:
        draw.ellipse([x - 36, y - 36, x + 36, y + 36], fill=colour)
        if marked:
            draw.ellipse([x - 10, y - 10, x + 10, y + 10], fill="white")
    return picture


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(network().SerializeToString(deterministic=True))
    scene().save(sys.argv[2])

"""Make a network in the form that Ultralytics exports. It was never trained: it finds coloured dots.

pip install onnx
python examples/ultralytics/dots.py dots.onnx [--static]

Windows of 64 x 64 pixels lie on the picture, 16 apart. In each, and for each colour, the mass of
what has that colour, its mean and its variance say where an ellipse would be, and how well the
window is filled by it says how sure that is.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

NAMES = {0: "red", 1: "green", 2: "blue"}
SIDE, WINDOW, STRIDE = 320, 64, 16
ACROSS = (SIDE - WINDOW) // STRIDE + 1
WINDOWS = ACROSS * ACROSS

GRAPH = f"""
<ir_version: 8, opset_import: ["": 17]>
dots (float[BATCH, 3, {SIDE}, {SIDE}] images) => (float[BATCH, {4 + len(NAMES)}, {len(NAMES) * WINDOWS}] output0)
{{
  tinted = Conv (images, tint, grey)
  ink = Clip (tinted, zero, one)
  sums = Conv <group = {len(NAMES)}, strides = [{STRIDE}, {STRIDE}]> (ink, moments)
  apart = Reshape (sums, by_colour)
  inked, u, v, uu, vv = Split <axis = 2> (apart, each)
  mass = Add (inked, tiny)
  x = Div (u, mass)
  y = Div (v, mass)
  mean_xx = Div (uu, mass)
  mean_yy = Div (vv, mass)
  xx = Mul (x, x)
  yy = Mul (y, y)
  var_x = Sub (mean_xx, xx)
  var_y = Sub (mean_yy, yy)
  some_x = Max (var_x, zero)
  some_y = Max (var_y, zero)
  sigma_x = Sqrt (some_x)
  sigma_y = Sqrt (some_y)
  width = Mul (sigma_x, four)
  height = Mul (sigma_y, four)

  around = Mul (width, height)
  ellipse = Mul (around, quarter_pi)
  least = Add (ellipse, some)
  filled = Div (mass, least)
  off = Add (xx, yy)
  steep = Mul (off, three)
  central = Sub (most, steep)
  sure = Mul (filled, central)
  score = Clip (sure, zero, one)

  x_pixels = Mul (x, half)
  y_pixels = Mul (y, half)
  x_at = Add (x_pixels, columns)
  y_at = Add (y_pixels, rows)
  width_pixels = Mul (width, half)
  height_pixels = Mul (height, half)
  box = Concat <axis = 2> (x_at, y_at, width_pixels, height_pixels)
  boxes = Transpose <perm = [0, 2, 1, 3]> (box)
  one_score = Transpose <perm = [0, 2, 1, 3]> (score)
  scores = Mul (one_score, own)
  rows_of = Concat <axis = 1> (boxes, scores)
  output0 = Reshape (rows_of, flat)
}}
"""


def constants() -> dict[str, np.ndarray]:
    """The weights, none of which was learned."""
    colours = len(NAMES)
    tint = 1.5 * np.eye(colours) - 0.5  # a colour minus the mean of the two others
    place = (np.arange(WINDOW) - (WINDOW - 1) / 2) / (WINDOW / 2)
    v, u = np.meshgrid(place, place, indexing="ij")
    kernels = np.stack([np.ones_like(u), u, v, u * u, v * v]) / (WINDOW / 2) ** 2
    centres = STRIDE * np.arange(ACROSS) + WINDOW / 2
    y, x = np.meshgrid(centres, centres, indexing="ij")
    floats = {
        "tint": 20 * tint.reshape(colours, colours, 1, 1),
        "grey": np.full(colours, -6.0),
        "moments": np.tile(kernels[:, None], (colours, 1, 1, 1)),
        "columns": x.reshape(1, 1, 1, WINDOWS),
        "rows": y.reshape(1, 1, 1, WINDOWS),
        "own": np.eye(colours).reshape(1, colours, colours, 1),
    }
    scalars = {"zero": 0, "one": 1, "three": 3, "four": 4, "half": WINDOW / 2, "quarter_pi": np.pi / 4}
    scalars |= {"tiny": 1e-6, "some": 1e-3, "most": 1.3}
    made = {name: np.asarray(value, np.float32) for name, value in (floats | scalars).items()}
    integers = {"by_colour": [0, colours, 5, WINDOWS], "each": [1] * 5, "flat": [0, 4 + colours, colours * WINDOWS]}
    return made | {name: np.asarray(value, np.int64) for name, value in integers.items()}


def network(static: bool = False) -> onnx.ModelProto:
    """The network, for any number of pictures at once or, static, for one."""
    made = parser.parse_model(GRAPH.replace("BATCH", "1" if static else "batch"))
    made.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants().items())
    described = {"description": "coloured dots", "task": "detect", "stride": 32, "batch": 1, "imgsz": [SIDE, SIDE]}
    described |= {"channels": 3, "names": NAMES, "args": {"dynamic": not static}}
    onnx.helper.set_model_props(made, {key: str(value) for key, value in described.items()})
    onnx.checker.check_model(made, full_check=True)
    return made


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("file", type=Path, help="where the network goes")
    options.add_argument(
        "--static", action="store_true", help="for one picture at a time, as yolo export does by default"
    )
    given = options.parse_args()
    given.file.write_bytes(network(given.static).SerializeToString(deterministic=True))

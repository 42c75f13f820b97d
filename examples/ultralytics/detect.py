"""Ask a detector by Ultralytics' TritonRemoteModel, and draw what it finds.

pip install tritonclient[all] opencv-python-headless
pip install --no-deps ultralytics
python examples/ultralytics/detect.py http://127.0.0.1:8000/dots --out dots.png

Only the class is loaded: it needs numpy and tritonclient, its package PyTorch and more.
"""

from __future__ import annotations

import argparse
import ast
import runpy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import numpy as np

SURE, SAME = 0.8, 0.5
INKS = {"red": (210, 40, 40), "green": (40, 170, 60), "blue": (50, 80, 220)}


def remote(url: str) -> Any:
    """A TritonRemoteModel of the installed package."""
    package = find_spec("ultralytics")
    if package is None or package.origin is None:
        raise SystemExit("the package ultralytics is not installed: pip install --no-deps ultralytics")
    return runpy.run_path(str(Path(package.origin).parent / "utils" / "triton.py"))["TritonRemoteModel"](url)


def scene(side: int, seed: int = 3) -> Any:
    """A grey picture with coloured dots, and some that are grey."""
    random = np.random.default_rng(seed)
    picture = np.full((side, side, 3), 225, np.uint8)
    cells = [(x, y) for y in range(5) for x in range(5)]
    for n, at in enumerate(random.permutation(len(cells))[:9]):
        ink = list(INKS.values())[n % 3] if n < 7 else (120, 120, 120)
        x, y = (int((c + 0.5) * side / 5 + random.integers(-7, 8)) for c in cells[at])
        cv2.circle(picture, (x, y), int(random.integers(8, 20)), ink, -1, cv2.LINE_AA)
    return picture


def overlap(one: Any, others: Any) -> Any:
    """Intersection over union of a box with others: left, top, right, bottom."""
    low, high = np.maximum(one[:2], others[:, :2]), np.minimum(one[2:], others[:, 2:])
    both = np.clip(high - low, 0, None).prod(axis=1)
    return both / ((one[2:] - one[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(axis=1) - both)


def found(output: Any) -> list[tuple[int, float, Any]]:
    """Class, score and corners of the objects in the output of one picture: [4 + classes, boxes]."""
    scores = output[4:].max(axis=0)
    order = [i for i in np.argsort(-scores) if scores[i] > SURE]
    corners = np.concatenate([output[:2] - output[2:4] / 2, output[:2] + output[2:4] / 2]).T
    kept: list[int] = []
    for i in order:
        if not kept or overlap(corners[i], corners[kept]).max() < SAME:
            kept.append(i)
    return [(int(output[4:, i].argmax()), float(scores[i]), corners[i]) for i in kept]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="http://HOST:8000/MODEL or grpc://HOST:8001/MODEL")
    parser.add_argument("--out", type=Path, help="where the picture goes, a PNG or JPEG")
    args = parser.parse_args()
    model = remote(args.url)
    names = ast.literal_eval(model.metadata["names"])
    height, width = ast.literal_eval(model.metadata["imgsz"])
    picture = scene(min(height, width))
    (output,) = model(picture.transpose(2, 0, 1)[None].astype(np.float32) / 255)
    drawn = cv2.cvtColor(picture, cv2.COLOR_RGB2BGR)
    for kind, score, corners in found(output[0]):
        left, top, right, bottom = (round(float(n)) for n in corners)
        print(f"{names[kind]} from {left}, {top} to {right}, {bottom}")
        cv2.rectangle(drawn, (left - 2, top - 2), (right + 1, bottom + 1), (40, 40, 40), 1)
        text = f"{names[kind]} {score:.2f}"
        cv2.putText(drawn, text, (left - 4, top - 7), cv2.FONT_HERSHEY_SIMPLEX, 0.4, (40, 40, 40), 1, cv2.LINE_AA)
    if args.out and not cv2.imwrite(str(args.out), drawn):
        raise SystemExit(f"{args.out}: OpenCV could not write it")


if __name__ == "__main__":
    main()

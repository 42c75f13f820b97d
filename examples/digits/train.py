"""Train the digits model and write every file of this example that comes from data.

The data are the 1797 handwritten digits of 8x8 pixels that ship inside scikit-learn. Every fifth is
held out. A network of 64-64-10 with ReLU is trained on the others; scores are trained towards +1
for the right digit and -1 for the other nine (squared hinge loss).

The files come out the same, bit for bit, on every machine: training uses only operations that IEEE
754 defines exactly (no exp, no pow), element by element, in an order that no BLAS and no SIMD width
can change. That costs five seconds, and lets a test hold the files to this script.

    python examples/digits/train.py [directory]

weights.f32    4810 little-endian float32: W1[64][64], b1[64], W2[64][10], b2[10]
digits.onnx    the same network for ONNX Runtime
images/NN.png  the first 20 held-out images, as a camera would send them: 8x8 grey, 0..255
labels.txt     "NN.png digit" for each
scores.f32     the network's scores for those 20: ten little-endian float32 each, from float64
heldout.u8     all held-out images, for the tests: 64 bytes of pixels and one of label each
digits.svg     the first 20, each above the digit that the network sees; red if that is wrong
"""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper
from sklearn.datasets import load_digits

Floats = NDArray[np.float64]

HIDDEN = 64
EPOCHS = 120
BATCH = 64
IMAGES = 20


def data() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images as 8x8 bytes of 0..255 (scikit-learn has 0..16), and labels."""
    digits = load_digits()
    return np.rint(digits.images * (255 / 16)).astype(np.uint8), digits.target.astype(np.int64)


def split(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The training set, and every fifth, which is held out."""
    held = np.arange(len(values)) % 5 == 4
    return values[~held], values[held]


def product(a: Floats, b: Floats) -> Floats:
    """The matrix product, summed in the order of the inner index whatever the machine."""
    out = np.zeros((a.shape[0], b.shape[1]))
    for k in range(a.shape[1]):
        out += a[:, k, None] * b[k]
    return out


def forward(x: Floats, parameters: list[Floats]) -> tuple[Floats, Floats]:
    """The hidden layer and the scores."""
    w1, b1, w2, b2 = parameters
    hidden = np.maximum(product(x, w1) + b1, 0)
    return hidden, product(hidden, w2) + b2


def train(x: Floats, labels: NDArray[np.int64]) -> list[Floats]:
    """Stochastic gradient descent with momentum and weight decay; the step falls to zero."""
    random = np.random.RandomState(7)  # numpy promises that its numbers never change
    parameters = [
        (random.random_sample((64, HIDDEN)) - 0.5) * 0.4,
        np.zeros((1, HIDDEN)),
        (random.random_sample((HIDDEN, 10)) - 0.5) * 0.4,
        np.zeros((1, 10)),
    ]
    velocities = [np.zeros_like(p) for p in parameters]
    targets = np.where(labels[:, None] == np.arange(10), 1.0, -1.0)
    steps = EPOCHS * (len(x) // BATCH)
    step = 0
    for _ in range(EPOCHS):
        order = random.permutation(len(x))
        for first in range(0, len(x) - BATCH + 1, BATCH):
            rows = order[first : first + BATCH]
            hidden, scores = forward(x[rows], parameters)
            slope = -targets[rows] * np.maximum(1 - targets[rows] * scores, 0) / BATCH
            back = product(slope, parameters[2].T) * (hidden > 0)
            ones = np.ones((1, BATCH))
            slopes = [product(x[rows].T, back), product(ones, back), product(hidden.T, slope), product(ones, slope)]
            rate = 0.1 * (1 - step / steps)
            for p, v, g in zip(parameters, velocities, slopes, strict=True):
                v *= 0.9
                v -= rate * (g + 0.0005 * p)
                p += v
            step += 1
    return parameters


def network(parameters: list[NDArray[np.float32]]) -> bytes:
    """The network as ONNX, from bytes of 0..255 to scores and the digit with the best score."""
    w1, b1, w2, b2 = parameters
    constants = {
        "W1": w1,
        "b1": b1[0],
        "W2": w2,
        "b2": b2[0],
        "scale": np.array(255, np.float32),
        "flat": np.array([-1, 64], np.int64),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["image"], ["float"], to=TensorProto.FLOAT),
            helper.make_node("Div", ["float", "scale"], ["scaled"]),
            helper.make_node("Reshape", ["scaled", "flat"], ["x"]),
            helper.make_node("Gemm", ["x", "W1", "b1"], ["sum"]),
            helper.make_node("Relu", ["sum"], ["hidden"]),
            helper.make_node("Gemm", ["hidden", "W2", "b2"], ["scores"]),
            helper.make_node("ArgMax", ["scores"], ["label"], axis=1, keepdims=0),
        ],
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.UINT8, ["rows", 8, 8])],
        [
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["rows", 10]),
            helper.make_tensor_value_info("label", TensorProto.INT64, ["rows"]),
        ],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8, producer_name="train.py"
    )
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString(deterministic=True)


def png(image: NDArray[np.uint8]) -> bytes:
    """A grey PNG without compression, so that its bytes depend on no zlib version."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    height, width = image.shape
    lines = b"".join(b"\0" + line.tobytes() for line in image)
    stored = b"\x78\x01\x01" + struct.pack("<HH", len(lines), len(lines) ^ 0xFFFF) + lines
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = stored + struct.pack(">I", zlib.adler32(lines))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def sheet(images: NDArray[np.uint8], answers: NDArray[np.int64], labels: NDArray[np.int64]) -> str:
    """A drawing of images, ten to a line, each above the digit that the network sees in it."""
    inks: dict[int, list[str]] = {}
    texts = []
    for n, image in enumerate(images):
        left, top = 2 + n % 10 * 10, 1 + n // 10 * 14
        for y, x in np.argwhere(image).tolist():
            inks.setdefault(int(image[y, x]), []).append(f"M{left + x} {top + y}h1v1h-1z")
        ink = "#2a7f3f" if answers[n] == labels[n] else "#c0392b"
        texts.append(f'<text x="{left + 4}" y="{top + 11.5}" text-anchor="middle" fill="{ink}">{answers[n]}</text>')
    paths = [
        f'<path fill="#{255 - ink:02x}{255 - ink:02x}{255 - ink:02x}" d="{"".join(inks[ink])}"/>'
        for ink in sorted(inks)
    ]
    width, height = 102, 1 + len(images) // 10 * 14
    size = f'viewBox="0 0 {width} {height}" width="{6 * width}" height="{6 * height}"'
    style = 'font-family="system-ui, sans-serif" font-size="3" shape-rendering="crispEdges"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>'
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="#fff"/>', *paths, *texts, "</svg>\n"])


def files() -> dict[str, bytes]:
    """Every file that this script makes, by name."""
    images, labels = data()
    seen, held = split(images)
    seen_labels, held_labels = split(labels)
    parameters = [p.astype(np.float32) for p in train(seen.reshape(-1, 64) / 255, seen_labels)]
    _, scores = forward(held.reshape(-1, 64) / 255, [p.astype(np.float64) for p in parameters])
    right = int((scores.argmax(axis=1) == held_labels).sum())
    print(f"held out: {right} of {len(held)} right, {100 * right / len(held):.1f} %")
    made = {
        "weights.f32": b"".join(p.astype("<f4").tobytes() for p in parameters),
        "digits.onnx": network(parameters),
        "labels.txt": "".join(f"{n:02}.png {held_labels[n]}\n" for n in range(IMAGES)).encode(),
        "scores.f32": scores[:IMAGES].astype("<f4").tobytes(),
        "heldout.u8": np.column_stack([held.reshape(-1, 64), held_labels.astype(np.uint8)]).tobytes(),
        "digits.svg": sheet(held[:IMAGES], scores[:IMAGES].argmax(axis=1), held_labels[:IMAGES]).encode(),
    }
    return made | {f"images/{n:02}.png": png(held[n]) for n in range(IMAGES)}


def main() -> None:
    """Write the files next to this script, or into the given directory."""
    into = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name, content in files().items():
        path = into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    main()

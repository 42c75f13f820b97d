"""The models that the end-to-end test serves with the SDK, all in one process."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
from shiva_container import DATATYPES, Batch, Request, Tensor, model, serve

ECHOED = [name for name in DATATYPES if name not in ("BYTES", "BF16")]  # not on Shiva's wire
PAIR = [Tensor("x", "FP32", [-1, 2])]
SUM = [Tensor("sum", "FP32", [-1])]

for datatype in ECHOED:
    tensors = [Tensor("x", datatype, [-1, -1])]
    model(name=f"echo_{datatype.lower()}", batched=True, inputs=tensors, outputs=tensors)(lambda x: x)


@model(name="rows", inputs=PAIR, outputs=SUM, per_row=True)
def rows(x: Any) -> Any:
    """Fails only the request with a row that begins with a negative number."""
    if x[0] < 0:
        raise ValueError(f"{x[0]:g} is negative")
    return x.sum()


@model(name="fails", inputs=PAIR, outputs=SUM)
def fails(x: Any) -> Any:
    raise ValueError("no such luck")


@model(name="wrong", inputs=PAIR, outputs=SUM)
def wrong(x: Any) -> Any:
    return x.sum(axis=1).astype(np.float64)


@model(name="slow", inputs=PAIR, outputs=SUM)
def slow(x: Any) -> Any:
    """Takes the number of seconds in the first row."""
    time.sleep(float(x[0, 0]))
    return x.sum(axis=1)


@model(name="one", inputs=[Tensor("a", "INT32", [3]), Tensor("b", "INT32", [])], outputs=[Tensor("c", "INT32", [3])])
def one(a: Any, b: Any) -> Any:
    """Has no batch dimension."""
    return a * b


@model(name="shout", inputs=[Tensor("text", "BYTES", [-1])], outputs=[Tensor("loud", "BYTES", [-1])], per_row=True)
def shout(text: Any, request: Request) -> Any:
    """Text has no dtype on Shiva's wire: it travels in the metadata."""
    return text.decode().upper() + str(request.parameters.get("mark", ""))


PAIRS = [Tensor("x", "BYTES", [-1, 2])]
model(name="pairs", inputs=PAIRS, outputs=PAIRS)(lambda x: x)


IMAGE, MASK = Tensor("image", "FP32", [-1, 2]), Tensor("mask", "FP32", [-1, 2])


@model(name="sub", inputs=[IMAGE, MASK], outputs=[Tensor("scores", "FP32", [-1, 2]), Tensor("label", "BYTES", [-1])])
def sub(image: Any, mask: Any, batch: Batch) -> Any:
    """Its inputs do not commute; the label is from the parameters."""
    labels = [json.dumps(r.parameters, sort_keys=True) for r in batch.requests for _ in range(r.rows)]
    return image - mask, np.array(labels, object)


WIDE = [Tensor(f"x{i}", "INT32", [-1]) for i in range(255)]


@model(name="wide", inputs=WIDE, outputs=[Tensor(f"y{i}", "INT32", [-1]) for i in range(255)], batched=True)
def wide(*x: Any) -> Any:
    """Returns its inputs in reverse, each times its position: y0 is 0 times x254."""
    return tuple(i * value for i, value in enumerate(reversed(x)))


@model(name="short", inputs=PAIR, outputs=[Tensor("y", "BF16", [-1, 2])])
def short(x: Any) -> Any:
    """Truncates float32 to bfloat16, which Shiva does not have: it is sent as float32."""
    return (x.view("uint32") >> 16).astype("uint16")


@model(
    name="clip",
    batched=False,
    inputs=[Tensor("x", "FP32", [-1]), Tensor("gain", "FP32", [], optional=True)],
    outputs=[Tensor("frames", "FP32", [-1, 4])],
)
def clip(x: Any, gain: Any) -> Any:
    """One clip of any length in, as many whole frames out."""
    frames = x[: len(x) // 4 * 4].reshape(-1, 4)
    return frames if gain is None else frames * gain


@model(
    name="boxes",
    inputs=[Tensor("image", "UINT8", [-1, 2, 2])],
    outputs=[
        Tensor("boxes", "FP32", [-1, 4], ragged="count"),
        Tensor("scores", "FP32", [-1], ragged="count"),
        Tensor("names", "BYTES", [-1], ragged="count"),
        Tensor("tags", "BYTES", [-1, 2], ragged="count"),
        Tensor("count", "INT64", [-1]),
    ],
    per_row=True,
)
def boxes(image: Any) -> Any:
    """Returns as many boxes as the value of the first pixel."""
    n = int(image[0, 0])
    names = [f"{i} of {n}" for i in range(n)]
    return (
        np.full((n, 4), n, "f4"),
        np.arange(n, dtype="f4"),
        names,
        np.array([[name, ""] for name in names], object).reshape(n, 2),
    )


if __name__ == "__main__":
    serve()

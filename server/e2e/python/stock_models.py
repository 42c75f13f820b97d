"""Models for the test with the stock clients, besides the SDK's and the supervised one in Go."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
from shiva_container import DATATYPES, Request, Tensor, model, serve

ECHOED = [name for name in DATATYPES if not name.startswith(("LONG", "COMPLEX"))]  # all clients

for datatype in ECHOED:
    tensors = [Tensor("x", datatype, [-1, -1])]
    model(name=f"stock_{datatype.lower()}", batched=True, inputs=tensors, outputs=tensors)(lambda x: x)


@model(name="stock_told", inputs=[Tensor("x", "INT32", [-1])], outputs=[Tensor("told", "BYTES", [-1])], per_row=True)
def told(x: Any, request: Request) -> Any:
    """Returns the parameters that it got with the rows."""
    return json.dumps({"parameters": request.parameters, "priority": request.priority})


def pair(datatype: str) -> dict[str, list[Tensor]]:
    """The tensors of Triton's models "simple" and "simple_string"."""
    return {
        "inputs": [Tensor(f"INPUT{i}", datatype, [-1, 16]) for i in range(2)],
        "outputs": [Tensor(f"OUTPUT{i}", datatype, [-1, 16]) for i in range(2)],
    }


@model(name="stock_simple", batched=True, **pair("INT32"))
def simple(INPUT0: Any, INPUT1: Any) -> Any:
    """The sum and the difference."""
    return INPUT0 + INPUT1, INPUT0 - INPUT1


@model(name="stock_simple_string", batched=True, **pair("BYTES"))
def simple_string(INPUT0: Any, INPUT1: Any) -> Any:
    """The same for numbers as text."""
    numbers = simple(*(np.vectorize(int, otypes=[np.int64])(x) for x in (INPUT0, INPUT1)))
    return tuple(np.vectorize(str, otypes=[object])(y) for y in numbers)


sums: dict[Any, int] = {}


@model(
    name="stock_sequence",
    inputs=[Tensor("INPUT", "INT32", [-1, 1])],
    outputs=[Tensor("OUTPUT", "INT32", [-1, 1])],
    per_row=True,
)
def sequence(INPUT: Any, request: Request) -> Any:
    """Adds up each sequence, as Triton's simple_sequence does."""
    told = request.parameters
    before = 0 if told["sequence_start"] else sums.pop(told["sequence_id"])
    total = before + int(INPUT[0])
    if not told["sequence_end"]:
        sums[told["sequence_id"]] = total
    return np.array([total], dtype=np.int32)


ANIMALS = ["cat", "dog: a good one", "", "grüner Vogel"]  # the third is empty, a fifth is missing


@model(
    name="stock_labels",
    inputs=[Tensor("image", "FP32", [-1, 1, 1, 5], format="FORMAT_NHWC")],
    outputs=[Tensor("scores", "FP32", [-1, 5], labels=ANIMALS)],
)
def labels(image: Any) -> Any:
    """The scores of five classes are the channels of the only pixel."""
    return image.reshape(-1, 5)


@model(name="stock_fails", batched=True, inputs=[Tensor("x", "INT32", [-1])], outputs=[Tensor("y", "INT32", [-1])])
def fails(x: Any) -> Any:
    raise ValueError("no such luck")


@model(name="stock_slow", batched=True, inputs=[Tensor("x", "FP32", [-1])], outputs=[Tensor("y", "FP32", [-1])])
def slow(x: Any) -> Any:
    """Takes the number of seconds in the first row."""
    time.sleep(float(x[0]))
    return x


if __name__ == "__main__":
    serve()

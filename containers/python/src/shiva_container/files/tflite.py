"""TensorFlow Lite files, by LiteRT."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from ..tensors import Array
from . import told
from .network import Network, Options, Port, Unusable

TYPES: dict[Any, str] = {
    np.float32: "FP32",
    np.float64: "FP64",
    np.float16: "FP16",
    np.bool_: "BOOL",
    np.complex64: "COMPLEX64",
} | {np.dtype(f"{kind}{bits}").type: f"{kind.upper()}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}


def read(path: Path, options: Options) -> Network:
    if options.device not in ("auto", "cpu"):
        raise Unusable(f"{path}: device {options.device}: LiteRT files execute on the CPU here: expected auto or cpu")
    interpreter = Interpreter(str(path), num_threads=options.share)
    inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
    declared = [tuple(one["shape"].tolist()) for one in inputs]
    current = list(declared)
    interpreter.allocate_tensors()

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        nonlocal current
        if (shapes := [array.shape for array in arrays]) != current:
            current = []  # if it fails, no shape is known to be allocated
            for one, shape in zip(inputs, shapes, strict=True):
                interpreter.resize_tensor_input(one["index"], shape, strict=False)
            interpreter.allocate_tensors()
            current = shapes
        for one, array in zip(inputs, arrays, strict=True):
            interpreter.set_tensor(one["index"], array)
        interpreter.invoke()
        return [interpreter.get_tensor(one["index"]) for one in outputs]

    return Network(
        platform="tflite",
        device="cpu",
        inputs=[_port(path, one) for one in inputs],
        outputs=[_port(path, one) for one in outputs],
        run=run,
        metadata=told.inside(path),
    )


def _port(path: Path, details: dict[str, Any]) -> Port:
    """Open sizes are -1 in the signature, and written as 1 in the shape."""
    datatype = TYPES.get(details["dtype"])
    if datatype is None:
        raise Unusable(f"{path}: tensor {details['name']} is {details['dtype'].__name__}, which has no datatype here")
    signature = details.get("shape_signature", details["shape"]).tolist()
    shape = details["shape"].tolist()
    sizes = signature if len(signature) == len(shape) else shape
    return Port(_name(details["name"]), datatype, tuple("" if one < 1 else one for one in sizes))


def _name(name: str) -> str:
    """Without the name of the signature, and the number of the output, that converters add."""
    return name.removeprefix("serving_default_").removesuffix(":0")

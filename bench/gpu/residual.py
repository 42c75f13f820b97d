"""Networks in the form of ResNet, with random weights: their time is real, their answers are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper


def write(path: Path, *, side: int, width: int, blocks: int, classes: int = 1000) -> Path:
    """Write a network of pictures [rows, 3, side, side] that answers scores [rows, classes].

    A stem halves the picture; each of four stages has ``blocks`` blocks of two convolutions beside
    a shortcut, and all but the first halve it again and double the ``width``, its channels.
    """
    random = np.random.default_rng(5)
    nodes: list[NodeProto] = []
    weights: list[TensorProto] = []

    def convolve(x: str, before: int, after: int, size: int, stride: int) -> str:
        name = f"c{len(weights)}"
        kernel = random.normal(0, (2 / (before * size * size)) ** 0.5, (after, before, size, size))
        weights.append(numpy_helper.from_array(kernel.astype(np.float32), f"{name}_w"))
        pads = [size // 2] * 4
        nodes.append(helper.make_node("Conv", [x, f"{name}_w"], [name], strides=[stride, stride], pads=pads))
        return name

    def then(kind: str, *inputs: str) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"n{len(nodes)}"]))
        return str(nodes[-1].output[0])

    x, channels = then("Relu", convolve("image", 3, width, 7, 2)), width
    for stage in range(4):
        for block in range(blocks):
            after, stride = width << stage, 2 if stage > 0 and block == 0 else 1
            deep = convolve(
                then("Relu", convolve(x, channels, after, 3, stride)),
                after,
                after,
                3,
                1,
            )
            short = x if (channels, stride) == (after, 1) else convolve(x, channels, after, 1, stride)
            x, channels = (
                then("Relu", then("Add", then("Mul", deep, "half"), short)),
                after,
            )
    flat = then("Flatten", then("GlobalAveragePool", x))
    weights.append(numpy_helper.from_array(np.array(0.5, np.float32), "half"))
    weights.append(numpy_helper.from_array(random.normal(0, 0.1, (channels, classes)).astype(np.float32), "out_w"))
    nodes.append(helper.make_node("MatMul", [flat, "out_w"], ["scores"]))
    graph = helper.make_graph(
        nodes,
        "residual",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["rows", 3, side, side])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["rows", classes])],
        weights,
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9),
        path,
    )
    return path

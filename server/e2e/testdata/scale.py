"""Writes a network y = FACTOR * x in rows of a shape: scale.py PATH FACTOR [ROWS,SIZE,... [SIZE,...]].

ROWS may be a name, for any number. The second shape is that of y, where it has another one.
"""

import os
import sys

from onnx import TensorProto, helper, save

path, factor = sys.argv[1], float(sys.argv[2])


def shape(text: str) -> list[str | int]:
    return [int(size) if size.isdecimal() else size for size in text.split(",")]


given = shape((sys.argv[3:] or ["rows,2"])[0])
answered = shape(sys.argv[4]) if len(sys.argv) > 4 else given
nodes = [helper.make_node("Mul", ["x", "factor"], ["scaled"]), helper.make_node("Reshape", ["scaled", "shape"], ["y"])]
sizes = [size if isinstance(size, int) else -1 for size in answered]
graph = helper.make_graph(
    nodes,
    "scale",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, given)],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, answered)],
    [
        helper.make_tensor("factor", TensorProto.FLOAT, [1], [factor]),
        helper.make_tensor("shape", TensorProto.INT64, [len(sizes)], sizes),
    ],
)
os.makedirs(os.path.dirname(path), exist_ok=True)
save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path + ".part")
os.replace(path + ".part", path)

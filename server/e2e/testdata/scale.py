"""Writes a network y = FACTOR * x for rows of WIDTH numbers: scale.py PATH FACTOR [WIDTH]."""

import os
import sys

from onnx import TensorProto, helper, save

path, factor, width = sys.argv[1], float(sys.argv[2]), int((sys.argv[3:] or ["2"])[0])
graph = helper.make_graph(
    [helper.make_node("Mul", ["x", "factor"], ["y"])],
    "scale",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", width])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", width])],
    [helper.make_tensor("factor", TensorProto.FLOAT, [1], [factor])],
)
network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
save(network, path + ".part")
os.replace(path + ".part", path)

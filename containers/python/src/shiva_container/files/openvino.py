"""OpenVINO's files (a .xml and its .bin), and ONNX files for the devices that OpenVINO drives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openvino

from ..tensors import Array
from . import told
from .network import Network, Options, Port, Unusable

TYPES = {"f32": "FP32", "f64": "FP64", "f16": "FP16", "boolean": "BOOL"} | {
    f"{letter}{bits}": f"{kind}{bits}" for letter, kind in (("i", "INT"), ("u", "UINT")) for bits in (8, 16, 32, 64)
}


def read(path: Path, options: Options) -> Network:
    core = openvino.Core()
    device = _device(path, options, core)
    settings: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
    if device == "CPU":
        settings["INFERENCE_NUM_THREADS"] = options.share
    model = core.read_model(path)
    compiled = core.compile_model(model, device, settings)
    where = compiled.get_property("EXECUTION_DEVICES")
    if device not in str(where):
        raise Unusable(f"{path}: device openvino:{device}: OpenVINO executes it on {where}")
    request = compiled.create_infer_request()
    names = list(compiled.outputs)

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        answers = request.infer(dict(enumerate(arrays)), share_inputs=True)
        return [answers[name] for name in names]

    outputs = [_port(path, "output", i, one) for i, one in enumerate(compiled.outputs)]
    return Network(
        platform="openvino",
        device="cpu" if device == "CPU" else f"openvino:{device}",
        inputs=[_port(path, "input", i, one) for i, one in enumerate(compiled.inputs)],
        outputs=outputs,
        run=run,
        metadata=_metadata(path, model, outputs),
    )


def _metadata(path: Path, model: Any, outputs: Sequence[Port]) -> dict[str, str]:
    """What the exporter wrote into the file, or beside it. OpenVINO keeps what an ONNX file has."""

    said = dict(model.get_rt_info().items())

    def part(name: str) -> dict[str, str]:
        members = said.get(name)
        values = members.items() if isinstance(members, dict) else ()
        return {key: _text(one.value) for key, one in values if hasattr(one, "value")}

    near = told.beside(path) if path.suffix == ".xml" else {}
    return told.of_model_api(part("model_info"), outputs) | part("framework") | near


def _text(value: Any) -> str:
    """A value of the metadata as OpenVINO's files have it."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _device(path: Path, options: Options, core: Any) -> str:
    kind, _, name = options.device.partition(":")
    if kind in ("auto", "cpu"):
        return "CPU"
    if kind != "openvino":
        raise Unusable(f"{path}: device {options.device}: expected auto, cpu, or openvino:NAME")
    there = list(core.available_devices)
    if name not in there and name.partition(".")[0] not in there:
        raise Unusable(f"{path}: device {options.device}: OpenVINO has {', '.join(there)} here, and not {name}")
    return name


def _port(path: Path, kind: str, i: int, node: Any) -> Port:
    name = node.get_any_name() if node.get_names() else f"{kind}-{i}"
    datatype = TYPES.get(node.get_element_type().get_type_name())
    if datatype is None:
        raise Unusable(f"{path}: {kind} {name} is {node.get_element_type()}: expected {', '.join(TYPES)}")
    shape = node.get_partial_shape()
    if shape.rank.is_dynamic:
        return Port(name, datatype, None)
    return Port(name, datatype, tuple("" if one.is_dynamic else one.get_length() for one in shape))

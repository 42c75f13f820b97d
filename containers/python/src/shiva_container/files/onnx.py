"""ONNX files, by ONNX Runtime."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from ..tensors import Array
from .network import Network, Options, Port, Unusable

log = logging.getLogger("shiva_container.files")

TYPES = {
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(float16)": "FP16",
    "tensor(bool)": "BOOL",
    "tensor(string)": "BYTES",
} | {f"tensor({kind}{bits})": f"{kind.upper()}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}
"""ONNX Runtime's name for each kind of device."""


def read(path: Path, options: Options) -> Network:
    session, device = _session(path, options)
    for node in session.get_inputs():
        if node.type not in TYPES:
            raise Unusable(f"{path}: input {node.name} is {node.type}: expected {', '.join(TYPES)}")
    outputs = []
    for node in session.get_outputs():
        if node.type in TYPES:
            outputs.append(node)
        else:  # such as the maps in which scikit-learn exporters return probabilities
            log.warning("%s: output %s is left out: it is %s, no tensor", path, node.name, node.type)
    if not outputs:
        raise Unusable(f"{path}: no output is a tensor of {', '.join(TYPES)}")
    inputs = [node.name for node in session.get_inputs()]
    names = [node.name for node in outputs]

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        answers: Sequence[Array] = session.run(names, dict(zip(inputs, map(_text, arrays), strict=True)))
        return answers

    return Network(
        platform="onnxruntime",
        device=device,
        inputs=[_port(node) for node in session.get_inputs()],
        outputs=[_port(node) for node in outputs],
        run=run,
        metadata=dict(session.get_modelmeta().custom_metadata_map),
    )


def _session(path: Path, options: Options) -> tuple[Any, str]:
    """The session, and the device on which it verifiably executes."""
    kind, _, number = options.device.partition(":")
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.share
    settings.inter_op_num_threads = 1
    settings.log_severity_level = 4  # exceptions say what goes wrong
    # Threads that wait for work by spinning take processors from the server and other processes.
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if kind == "auto":
        if PROVIDERS["cuda"] in onnxruntime.get_available_providers():
            try:
                return _placed(path, settings, "cuda", "0"), "cuda:0"
            except Exception as e:
                log.warning("%s: on the CPU, since CUDA does not work: %s", path, e)
        kind = "cpu"
    if kind not in PROVIDERS or (number and (kind == "cpu" or not number.isdecimal())):
        raise Unusable(f"{path}: device {options.device}: expected auto, cpu, cuda:0, tensorrt:0 or openvino:NAME")
    return _placed(path, settings, kind, number), f"{kind}:{number or 0}" if kind != "cpu" else "cpu"


def _placed(path: Path, settings: Any, kind: str, number: str) -> Any:
    """A session that executes on a device, and on no other in its place.

    ONNX Runtime itself takes the CPU, with a line on stderr, where a device does not work.
    """
    wanted = PROVIDERS[kind]
    there = onnxruntime.get_available_providers()
    if wanted not in there:
        raise Unusable(
            f"{path}: device {kind}: this onnxruntime has {', '.join(there)}, and not {wanted}; "
            "CUDA needs pip install onnxruntime-gpu"
        )
    placement: Any = wanted
    if kind != "cpu":
        placement = wanted, {"device_id": int(number or 0)}
        settings.log_severity_level = 3  # why a device does not work is no exception
    session = onnxruntime.InferenceSession(str(path), settings, providers=[placement])
    session.disable_fallback()
    if session.get_providers()[0] != wanted:
        raise Unusable(f"{path}: device {kind}: {wanted} does not work here, its reason is above")
    return session


def _port(node: Any) -> Port:
    """ONNX Runtime calls an open dimension by its name, None, or unk__ and a number."""
    sizes = [
        one if isinstance(one, int) and one > 0 else one if isinstance(one, str) and not one.startswith("unk__") else ""
        for one in node.shape
    ]
    return Port(node.name, TYPES[node.type], tuple(sizes))


def _text(array: Array) -> Array:
    """Text in the form that ONNX Runtime takes."""
    if array.dtype != object:
        return array
    return np.array([one.decode() for one in array.flat], object).reshape(array.shape)

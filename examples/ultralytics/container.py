"""Serve a network that Ultralytics has exported to ONNX, with the metadata that its own client reads.

pip install ./containers/python onnxruntime
python examples/ultralytics/container.py yolo11n.onnx
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import onnxruntime as ort
from shiva_container import Tensor, model, serve

TYPES = {"tensor(float)": "FP32", "tensor(float16)": "FP16"}


def declared(tensor: Any) -> Tensor:
    """A tensor of the network. A dimension that has a name there may have any size."""
    return Tensor(tensor.name, TYPES[tensor.type], [n if isinstance(n, int) else -1 for n in tensor.shape])


def main(path: Path) -> None:
    network = ort.InferenceSession(path)
    images, *more = (declared(one) for one in network.get_inputs())
    if more:
        raise SystemExit(f"{path}: {1 + len(more)} inputs; the networks of Ultralytics have one")
    outputs = [declared(one) for one in network.get_outputs()]

    @model(
        name=path.stem,
        platform="onnxruntime",
        batched=images.leads,  # if it was exported with dynamic=True
        inputs=[images],
        outputs=outputs,
        # Ultralytics parses this as Python, not as JSON: class names, stride, task and size.
        parameters={"metadata": str(network.get_modelmeta().custom_metadata_map)},
    )
    def run(pixels: Any, /) -> Any:
        return tuple(network.run([one.name for one in outputs], {images.name: pixels}))

    serve()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

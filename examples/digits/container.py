"""The digits model in Python: the network that train.py exported, run by ONNX Runtime.

pip install ./containers/python onnxruntime
python examples/digits/container.py
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from shiva_container import Tensor, model, serve

network = ort.InferenceSession(Path(__file__).with_name("digits.onnx"))


@model(
    name="digits",
    version="1",
    platform="onnxruntime",
    inputs=[Tensor("image", "UINT8", [-1, 8, 8])],
    outputs=[Tensor("scores", "FP32", [-1, 10]), Tensor("label", "INT64", [-1])],
    max_batch=64,
)
def digits(image: Any) -> Any:
    return network.run(["scores", "label"], {"image": image})


@digits.warmup
def warmup() -> None:
    digits(np.zeros((64, 8, 8), np.uint8))


if __name__ == "__main__":
    serve()

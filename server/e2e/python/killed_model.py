"""A model that answers with its process id, after the requested number of seconds."""

import os
import time
from typing import Any

import numpy as np
from shiva_container import Tensor, model, serve


@model(
    name=os.environ.get("MODEL_NAME", "killed"),
    batched=True,
    inputs=[Tensor("seconds", "FP32", [-1])],
    outputs=[Tensor("process", "INT64", [-1])],
)
def process(seconds: Any) -> Any:
    print("computing", seconds.max(), flush=True)
    time.sleep(float(seconds.max()))
    return np.full(len(seconds), os.getpid())


serve()

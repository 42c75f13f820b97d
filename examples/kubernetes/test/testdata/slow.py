"""A model that takes SECONDS for each row."""

import os
import time

from shiva_container import Tensor, model, serve

seconds = float(os.environ["SECONDS"])


@model(
    name=os.environ["MODEL_NAME"],
    batched=True,
    inputs=[Tensor("x", "FP32", [-1, 1])],
    outputs=[Tensor("y", "FP32", [-1, 1])],
)
def same(x):
    time.sleep(seconds * len(x))
    return x


serve()

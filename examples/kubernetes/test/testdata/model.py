"""A model that loads, computes and hangs as files and requests tell it."""

import os
import time
from pathlib import Path

from shiva_container import Tensor, model, serve

loaded = Path(os.environ["LOADED"])


@model(
    name=os.environ["MODEL_NAME"],
    batched=True,
    inputs=[Tensor("x", "FP32", [-1, -1])],
    outputs=[Tensor("sum", "FP32", [-1])],
)
def total(x):
    seconds = float(x[0, 0])  # how long it takes; below 0: for ever
    time.sleep(seconds if seconds >= 0 else 10_000)
    return x.sum(axis=1)


@total.warmup
def load():
    while not loaded.exists():
        time.sleep(0.01)


serve()

"""The models that most tests serve: they answer with their input."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from fake_server import Fake
from shiva_container import Tensor, model

X = Tensor("x", "FP32", [-1, 2])
Y = Tensor("y", "FP32", [-1, 2])
ROW = np.array([[1, 2]], "<f4").tobytes()


def echo(**changes: Any) -> Any:
    return model(**{"name": "echo", "inputs": [X], "outputs": [Y], **changes})(lambda x: x)


class Held:
    """A model whose calls wait, once inside, until they may leave."""

    def __init__(self) -> None:
        self.inside, self.leave = threading.Event(), threading.Event()
        self.calls = 0
        self.model = model(name="slow", inputs=[X], outputs=[Y])(self._call)

    def _call(self, x: Any) -> Any:
        self.calls += 1
        self.inside.set()
        self.leave.wait(60)
        return x


def ask(fake: Fake, peer: bytes, rows: int = 1) -> bytes:
    return fake.batch(peer, rows, [("x", "FP32", [rows, 2], ROW * rows)])

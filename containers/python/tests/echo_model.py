"""The model that most tests serve: it answers with its input."""

from __future__ import annotations

from typing import Any

import numpy as np
from fake_server import Fake
from shiva_container import Tensor, model

X = Tensor("x", "FP32", [-1, 2])
Y = Tensor("y", "FP32", [-1, 2])
ROW = np.array([[1, 2]], "<f4").tobytes()


def echo(**changes: Any) -> Any:
    return model(**{"name": "echo", "inputs": [X], "outputs": [Y], **changes})(lambda x: x)


def ask(fake: Fake, peer: bytes, rows: int = 1) -> bytes:
    return fake.batch(peer, rows, [("x", "FP32", [rows, 2], ROW * rows)])

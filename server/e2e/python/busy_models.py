"""Models that keep their process busy in ways that a server must not take for a crash.

    busy_models.py HOST:PORT MODEL...
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from typing import Any

import numpy as np
from shiva_container import Container, Tensor, model

X = [Tensor("x", "INT64", [-1, 1])]
four = threading.Barrier(4)


@model(name="big", inputs=[Tensor("x", "UINT8", [-1, -1])], outputs=[Tensor("y", "UINT8", [-1, -1])], batched=True)
def big(x: Any) -> Any:
    """Returns its input, which may be large."""
    return x


BYTES = Tensor("x", "UINT8", [-1, -1])


@model(name="shared", inputs=[BYTES], outputs=[BYTES, Tensor("where", "INT64", [-1])], batched=True)
def shared(x: Any) -> Any:
    """Returns its input, whether it is in shared memory (1), and whether outputs can be (2)."""
    where = 0
    with open("/proc/self/maps") as maps:
        for line in maps:
            if "memfd:" in line:
                first, last = (int(end, 16) for end in line.split()[0].split("-"))
                where |= (first <= x.ctypes.data < last) | 2 * ("rw-s" in line)
    return x, np.full(len(x), where)


@model(name="together", inputs=X, outputs=X, max_batch=1, concurrency=4)
def together(x: Any) -> Any:
    """Answers when four are computed at once."""
    four.wait(20)
    return x


@model(name="picky", inputs=[Tensor("x", "FP64", [-1, 1])], outputs=[Tensor("y", "FP64", [-1, 1])])
def picky(x: Any) -> Any:
    """Fails a batch with a negative row as a whole; takes 2 ms and 50 us for each row."""
    time.sleep(0.002 + 5e-5 * len(x))
    if (x < 0).any():
        raise ValueError("a negative row")
    return x


@model(name="quiet", inputs=X, outputs=X)
def quiet(x: Any) -> Any:
    """Is idle while the next one is loaded."""
    return x


@model(name="greedy", inputs=X, outputs=X)
def greedy(x: Any) -> Any:
    """Holds the interpreter lock while it is loaded."""
    return x


@greedy.warmup
def load() -> None:
    time.sleep(1)
    ctypes.PyDLL(None).sleep(3)  # as an extension does that does not let go of the lock


@model(name="holder", inputs=X, outputs=X)
def holder(x: Any) -> Any:
    """Holds the interpreter lock while it computes."""
    ctypes.PyDLL(None).sleep(3)
    return x


if __name__ == "__main__":
    address, *names = sys.argv[1:]
    with Container(
        *(m for m in (big, shared, together, picky, quiet, greedy, holder) if m.name in names), servers=address
    ) as container:
        container.wait()

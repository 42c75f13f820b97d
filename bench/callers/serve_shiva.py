"""A container that doubles rows, and takes a time for a batch and more for each row.

    serve_shiva.py SERVERS A_MS B_MS
"""

from __future__ import annotations

import sys
import time

from shiva_container import Tensor, model, serve
from shiva_container.tensors import Array


def main() -> None:
    a, b = float(sys.argv[2]) / 1e3, float(sys.argv[3]) / 1e3
    x, y = Tensor("x", "FP32", [-1, 64]), Tensor("y", "FP32", [-1, 64])

    @model(name="doubler", batched=True, inputs=[x], outputs=[y], max_batch=128, platform="sleeper")
    def double(x: Array) -> Array:
        if took := a + b * len(x):
            time.sleep(took)
        return x + x

    serve(servers=sys.argv[1])


if __name__ == "__main__":
    main()

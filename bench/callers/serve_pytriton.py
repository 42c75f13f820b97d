"""Triton with the model of serve_shiva.py.

    serve_pytriton.py HTTP_PORT GRPC_PORT A_MS B_MS WINDOW_MS
"""

import sys
import time

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


def main() -> None:
    http, grpc = int(sys.argv[1]), int(sys.argv[2])
    a, b, window = (float(text) / 1e3 for text in sys.argv[3:])

    @batch
    def double(x: np.ndarray) -> dict[str, np.ndarray]:
        time.sleep(a + b * len(x))
        return {"y": x + x}

    config = TritonConfig(
        http_address="127.0.0.1", http_port=http, grpc_address="127.0.0.1", grpc_port=grpc, allow_metrics=False
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name="doubler",
            infer_func=double,
            inputs=[Tensor(name="x", dtype=np.float32, shape=(64,))],
            outputs=[Tensor(name="y", dtype=np.float32, shape=(64,))],
            config=ModelConfig(
                max_batch_size=128, batcher=DynamicBatcher(max_queue_delay_microseconds=int(1e6 * window))
            ),
        )
        triton.serve()


if __name__ == "__main__":
    main()

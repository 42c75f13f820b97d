"""Triton with models in Python, which are the identity.

    serve_pytriton.py REST_PORT GRPC_PORT NAME:DATATYPE:SHAPE ...
"""

import sys

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig

DTYPES = {"UINT8": np.uint8, "FP32": np.float32}


@batch
def identity(x: np.ndarray) -> dict[str, np.ndarray]:
    return {"x": x}


def main() -> None:
    # Without restricted_endpoints=[] clients may not register shared memory.
    triton = Triton(
        config=TritonConfig(
            http_address="127.0.0.1",
            http_port=int(sys.argv[1]),
            grpc_address="127.0.0.1",
            grpc_port=int(sys.argv[2]),
            allow_metrics=False,
        ),
        security_config=TritonSecurityConfig(restricted_endpoints=[]),
    )
    with triton:
        for text in sys.argv[3:]:
            name, datatype, sizes = text.split(":")
            shape = tuple(int(size) for size in sizes.split(","))
            triton.bind(
                model_name=name,
                infer_func=identity,
                inputs=[Tensor(name="x", dtype=DTYPES[datatype], shape=shape)],
                outputs=[Tensor(name="x", dtype=DTYPES[datatype], shape=shape)],
                config=ModelConfig(max_batch_size=8),  # the number of requests in flight
            )
        triton.serve()


if __name__ == "__main__":
    main()

"""Asks a model over HTTP and over gRPC with Triton's clients: ask.py HTTP-ADDRESS GRPC-ADDRESS
MODEL INPUT SHAPE DATATYPE OUTPUT. All values are 1. Prints the output of both."""

import sys

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import triton_to_np_dtype

http, grpc, model, name, shape, datatype, output = sys.argv[1:]
for library, address in ((tritonclient.http, http), (tritonclient.grpc, grpc)):
    client = library.InferenceServerClient(address)
    assert client.is_server_ready()
    assert client.is_model_ready(model)
    sizes = [int(size) for size in shape.split(",")]
    given = library.InferInput(name, sizes, datatype)
    given.set_data_from_numpy(np.ones(sizes, triton_to_np_dtype(datatype)))
    print(client.infer(model, [given]).as_numpy(output).tolist())
    client.close()

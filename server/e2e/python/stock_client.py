"""Any of Triton's four clients, as tests use them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import stock_models
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import (
    InferenceServerException,
    np_to_triton_dtype,
    shared_memory,
)

used: dict[str, set[str]] = {}
"""The methods of each client that were called."""


class Stock:
    """A client whose methods are called the same way, whether they block or are coroutines."""

    def __init__(self, name: str, module: Any, address: str, run: Callable[[Any], Any]) -> None:
        self.name, self.http = name, name.startswith("http")
        self._run = run

        async def made() -> Any:  # by asyncio's in a running loop
            return module.InferenceServerClient(address)

        self.client: Any = run(made()) if "aio" in name else module.InferenceServerClient(address)

    def __getattr__(self, method: str) -> Any:
        used.setdefault(self.name, set()).add(method)
        call = getattr(self.client, method)

        @functools.wraps(call)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            return self._run(result) if inspect.isawaitable(result) else result

        return wrapped

    def input(self, name: str, array: np.ndarray, **binary: bool) -> Any:
        # The asyncio clients use those of the blocking one.
        made = (triton_http if self.http else triton_grpc).InferInput(
            name, list(array.shape), np_to_triton_dtype(array.dtype)
        )
        made.set_data_from_numpy(array, **binary)
        return made

    def output(self, name: str, **options: Any) -> Any:
        return (triton_http if self.http else triton_grpc).InferRequestedOutput(name, **options)

    def parameters(self, answer: Any, name: str) -> dict[str, Any]:
        """The parameters of an output."""
        output = answer.get_output(name)
        if self.http:
            return output["parameters"]
        return {key: value.string_param or value.int64_param for key, value in output.parameters.items()}

    def json(self, method: Any) -> Any:
        """The result of a method; gRPC results are converted to the form of HTTP."""
        return method() if self.http else method(as_json=True)


@contextlib.contextmanager
def refused(stock: Stock, http: int, grpc: str, *texts: str) -> Iterator[None]:
    """The client raises the exception that its users expect."""
    with pytest.raises(InferenceServerException) as info:
        yield
    error = info.value
    assert error.status() == (str(http) if stock.http else f"StatusCode.{grpc}"), error
    for text in texts:
        assert text in error.message(), error


def array(name: str) -> np.ndarray:
    """Rows of a datatype, including the extremes."""
    if name == "BYTES":
        return np.array([[b"", b"a\x00b"], ["grün \U0001f600".encode(), b"x" * 70000]], dtype=object)
    if name == "BOOL":
        return np.array([[True, False], [False, True]])
    if name == "BF16":
        return np.array([[1.5, -0.0], [3.0e38, 1e-40]], dtype=ml_dtypes.bfloat16)
    dtype = stock_models.DATATYPES[name]
    if dtype.kind == "f":
        limits = np.finfo(dtype)
        return np.array([[-0.0, limits.smallest_subnormal], [limits.max, 1 / 3]], dtype=dtype)
    integers = np.iinfo(dtype)
    return np.array([[integers.min, integers.max], [1, 7]], dtype=dtype)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and (a.tolist() if a.dtype == object else a.tobytes()) == (
        b.tolist() if b.dtype == object else b.tobytes()
    )


def key(name: str) -> str:
    return f"/shivad-{os.getpid()}-{name}"


@contextlib.contextmanager
def region(stock: Stock, name: str, size: int) -> Iterator[Any]:
    """Memory that client and server share while the block lasts."""
    handle = shared_memory.create_shared_memory_region(name, key(name), size, create_only=True)
    try:
        stock.register_system_shared_memory(name, key(name), size)
        yield handle
    finally:
        stock.unregister_system_shared_memory(name)
        shared_memory.destroy_shared_memory_region(handle)

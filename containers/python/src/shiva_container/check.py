"""Runs models on made-up rows, for ``python -m shiva_container check``.

It shows in advance the faults of production: a function that cannot be called with its declared
inputs, outputs of another dtype or shape, a hook that fails, rows whose answers depend on the
number of other rows in the batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import runpy
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .container import set_checking
from .images import Given, Regions
from .models import Batch, Model, declared_models, error_text
from .tensors import Array, Tensor, TensorError, decode, describe, encode


def load(path: str) -> list[Model[..., Any]]:
    """The models that running a file declares."""
    before = len(declared_models())
    argv, sys.argv = sys.argv, [path]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    set_checking(True)
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as e:  # sys.exit(main()) after serve() is a normal end
        if e.code:
            raise
    finally:
        set_checking(False)
        sys.path.pop(0)
        sys.argv = argv
    return declared_models()[before:]


def check_model(model: Model[..., Any], rows: int, dim: int) -> bool:
    """Try one model and print the result."""
    how = "per row" if model.per_row else "batched: the first dimension counts rows"
    if not model.batched:
        how = "not batched: one request at a time, in its own shapes"
    print(f"model {model}: {'async ' if model.is_async else ''}{how}")
    for kind, tensors in (("in ", model.inputs), ("out", model.outputs)):
        for tensor in tensors:
            print(f"  {kind} {tensor}")
    try:
        with _event_loop() as loop:
            _check(model, rows, dim, loop)
    except (Exception, SystemExit) as e:
        if not isinstance(e, TensorError):
            traceback.print_exc()
        print(f"  FAILED: {error_text(e)}")
        return False
    print("  ok")
    return True


def _check(model: Model[..., Any], rows: int, dim: int, loop: asyncio.AbstractEventLoop) -> None:
    for name, hook in (("warm-up", model.warmup_hook), ("health", model.health_hook)):
        if hook is not None:
            value = hook()
            if inspect.isawaitable(value):
                value = loop.run_until_complete(_await(value))
            if name == "health" and value is False:
                raise RuntimeError("the health hook returned False")
            print(f"  {name} hook: ok")
    for tensor in model.outputs:
        if model.batched and not tensor.ragged and -1 in tensor.shape[1:]:
            print(
                f'  note: output "{tensor.name}": the rows of one batch must agree in the sizes declared as -1; '
                "if they cannot, declare it ragged, pad it and return the counts, or say batched=False"
            )
    if not model.batched:
        inputs = [sample(tensor, dim, dim) for tensor in model.inputs]
        _try(model, inputs, 1, loop)
        if any(tensor.optional for tensor in model.inputs):
            print("  without the optional inputs:")
            left = [None if tensor.optional else array for tensor, array in zip(model.inputs, inputs, strict=True)]
            _try(model, left, 1, loop)
        return
    most = min(rows, model.max_batch or rows)
    inputs = [sample(tensor, most, dim) for tensor in model.inputs]
    together = _try(model, inputs, most, loop)
    if any(image.regions for _, image in model.images):
        print("  as regions of a picture:")
        part = np.full((most, 4, 2), [[0.25, 0.25], [0.75, 0.25], [0.75, 0.75], [0.25, 0.75]], np.float32)
        given: list[Given] = [*inputs]
        for i, image in model.images:
            if image.regions:
                given[i] = Regions([inputs[i][0]], [0] * most, part)
        _try(model, given, most, loop)
    if most > 1:
        alone = _try(model, [array[:1] for array in inputs], 1, loop)
        for tensor, many, one in zip(model.outputs, together, alone, strict=True):
            if not _alike(many[: len(one) if tensor.ragged else 1], one):
                print(f'  warning: output "{tensor.name}" of a row changes with the rows beside it')


@contextlib.contextmanager
def _event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """One loop for all awaitables of a model, as in a server: tasks of its warm-up continue."""
    loop = asyncio.new_event_loop()
    try:
        yield loop
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def sample(tensor: Tensor, first: int, dim: int) -> Array:
    """A made-up input, the same in every run: read-only, like inputs from the network.

    ``first`` and ``dim`` are the sizes of the first dimension and of the others, where they are
    declared as -1.
    """
    open_sizes = (first if i == 0 else dim for i in range(len(tensor.shape)))
    shape = [free if size == -1 else size for size, free in zip(tensor.shape, open_sizes, strict=True)]
    random = np.random.default_rng(0)
    kind = tensor.dtype.kind
    if tensor.datatype == "BYTES":
        array: Array = np.full(shape, b"text", object)
    elif kind in "iu":
        info = np.iinfo(tensor.dtype)
        array = random.integers(max(info.min, -128), min(info.max, 255), shape, dtype=np.int64, endpoint=True)
    elif kind == "b":
        array = random.random(shape) < 0.5
    else:
        array = random.random(shape)
    return decode(bytes(encode(array.astype(tensor.dtype), tensor.datatype)), tensor.datatype, shape)


def _try(
    model: Model[..., Any], inputs: Sequence[Given], rows: int, loop: asyncio.AbstractEventLoop
) -> list[Array]:
    batch = Batch(rows)
    start = time.perf_counter()
    outputs = loop.run_until_complete(model.run_async(inputs, batch)) if model.is_async else model.run(inputs, batch)
    took = time.perf_counter() - start
    for tensor, array in zip(model.outputs, outputs, strict=True):
        encode(array, tensor.datatype)
    for row, text in batch.errors.items():
        print(f"  row {row}: {text}")
    shapes = ", ".join(f"{t.name} {describe(a)}" for t, a in zip(model.outputs, outputs, strict=True))
    print(f"  {rows} {'row' if rows == 1 else 'rows'} in {took * 1000:.2f} ms: {shapes}")
    if len(batch.errors) == rows:
        raise TensorError("every row failed")
    return outputs


def _alike(a: Array, b: Array) -> bool:
    if a.dtype == object or b.dtype == object or a.dtype.kind in "SU":
        return bool(np.array_equal(a, b))
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True))


async def _await(value: Any) -> Any:
    return await value

"""Networks from files as models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .files.network import Network, Port
from .models import Batch, Model, model
from .proof import Verdict, Way, split
from .tensors import Array, Tensor


def serving(network: Network, verdict: Verdict, *, name: str, version: str = "1") -> Model[..., Any]:
    """The model that executes a network as its rows may be executed.

    Its parameters have the sentence of the proof as "proof", the device, and the text of the file's
    own metadata, as Ultralytics' client reads it: a Python dict.
    """
    batched, execute = verdict.counted, executing(network, verdict)
    parameters: dict[str, object] = {"proof": str(verdict), "device": network.device}
    if network.metadata:
        parameters["metadata"] = str(dict(network.metadata))

    @model(
        name=name,
        version=version,
        platform=network.platform,
        batched=batched,
        max_batch=verdict.most if batched else 0,
        inputs=[_tensor(port, batched) for port in network.inputs],
        outputs=_outputs(verdict, batched),
        parameters=parameters,
    )
    def run(*inputs: Array, batch: Batch) -> Any:
        answers = execute(inputs, batch.rows)
        if verdict.way is not Way.INDEXED:
            return tuple(answers)
        return tuple(
            split(array, verdict.columns[port.name], batch.rows) if port.name in verdict.columns else array
            for port, array in zip(network.outputs, answers, strict=True)
        )

    return run


def executing(network: Network, verdict: Verdict) -> Callable[[Sequence[Array], int], Sequence[Array]]:
    """A function that executes inputs of as many rows as it is told, from any thread."""

    def execute(inputs: Sequence[Array], rows: int) -> Sequence[Array]:
        with network.lock:
            if verdict.way is not Way.PADDED:
                return network.run(inputs)
            return [one[:rows] for one in network.run([_filled(one, verdict.most) for one in inputs])]

    return execute


def _tensor(port: Port, batched: bool) -> Tensor:
    return Tensor(port.name, port.datatype, [-1, *port.shape[1:]] if batched else port.shape)


def _outputs(verdict: Verdict, batched: bool) -> list[Tensor]:
    tensors = []
    for port in verdict.outputs:
        shape = [-1, *port.shape[1:]] if batched else port.shape
        if port.name not in verdict.columns:
            tensors.append(Tensor(port.name, port.datatype, shape, labels=port.labels))
            continue
        count = f"{port.name}_count"
        tensors.append(Tensor(port.name, port.datatype, shape, ragged=count))
        tensors.append(Tensor(count, "INT64", [-1]))
    return tensors


def _filled(array: Array, count: int) -> Array:
    """A batch with copies of its first row behind it, so that it has ``count`` rows."""
    if len(array) == count:
        return array
    return np.concatenate([array, np.repeat(array[:1], count - len(array), axis=0)])

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
        answers = execute(inputs, batch)
        if verdict.way is not Way.INDEXED:
            return tuple(answers)
        return tuple(
            split(array, verdict.columns[port.name], batch.rows) if port.name in verdict.columns else array
            for port, array in zip(network.outputs, answers, strict=True)
        )

    return run


def executing(network: Network, verdict: Verdict) -> Callable[[Sequence[Array], Batch], Sequence[Array]]:
    """A function that executes the rows of a batch, from any thread.

    A row that the network refuses, as scikit-learn does where a number is NaN, fails alone.
    """

    def run(inputs: Sequence[Array], rows: int) -> Sequence[Array]:
        if verdict.way is not Way.PADDED:
            return network.run(inputs)
        filled = [_filled(one, port.shape[0]) for one, port in zip(inputs, network.inputs, strict=True)]
        return [one[:rows] for one in network.run(filled)]

    def execute(inputs: Sequence[Array], batch: Batch) -> Sequence[Array]:
        with network.lock:
            try:
                return run(inputs, batch.rows)
            except Exception:
                faults = _refused(run, inputs, [*range(batch.rows)]) if batch.rows > 1 else {}
                if not 0 < len(faults) < batch.rows:
                    raise
            good = next(row for row in range(batch.rows) if row not in faults)
            answers = run([one[[good if i in faults else i for i in range(batch.rows)]] for one in inputs], batch.rows)
        for row, error in faults.items():
            batch.fail(row, error)
        return answers

    return execute


def _refused(
    run: Callable[[Sequence[Array], int], object], inputs: Sequence[Array], rows: Sequence[int]
) -> dict[int, Exception]:
    """Those of several rows that are refused alone, and why: found by halves."""
    faults: dict[int, Exception] = {}
    half = len(rows) // 2
    for part in (rows[:half], rows[half:]):
        try:
            run([one[part] for one in inputs], len(part))
        except Exception as e:  # whatever runtimes raise
            faults |= _refused(run, inputs, part) if len(part) > 1 else {part[0]: e}
    return faults


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

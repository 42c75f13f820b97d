"""Fitted estimators and pipelines of scikit-learn, saved by joblib, pickle or skops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import sklearn  # noqa: F401 (what the files are read with)

from ..tensors import Array
from .network import Network, Options, Port, Unusable


def read(path: Path, options: Options) -> Network:
    if options.device not in ("auto", "cpu"):
        raise Unusable(f"{path}: device {options.device}: scikit-learn executes on the CPU: expected auto or cpu")
    fitted = _load(path, options)
    features = getattr(fitted, "n_features_in_", None)
    if not hasattr(fitted, "predict") or not isinstance(features, int | np.integer):
        raise Unusable(
            f"{path}: expected a fitted estimator of scikit-learn with predict and n_features_in_, "
            f"got {type(fitted).__name__}; serve others by a Python file"
        )
    ways: list[tuple[str, Callable[[Any], Any]]] = [("predict", fitted.predict)]
    if hasattr(fitted, "predict_proba"):
        ways.append(("predict_proba", fitted.predict_proba))
    examples = [(way, _answer(call, np.zeros((1, features)))) for way, call in ways]
    classes = getattr(fitted, "classes_", ())
    # Estimators with several outputs have a list of classes for each.
    labels = [] if isinstance(classes, list) else [str(one) for one in classes]

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        return [_answer(call, arrays[0]) for _, call in ways]

    return Network(
        platform="scikit-learn",
        device="cpu",
        inputs=[Port("input-0", "FP64", ("", int(features)))],
        outputs=[
            Port(way, _datatype(one), ("", *one.shape[1:]), labels if way == "predict_proba" else ())
            for way, one in examples
        ],
        run=run,
    )


def _load(path: Path, options: Options) -> Any:
    if path.suffix.lower() == ".skops":
        try:
            from skops import io
        except ModuleNotFoundError as e:
            raise Unusable(f"{path}: {e.name} is not installed: pip install 'shiva-container[sklearn]'") from e
        unknown = io.get_untrusted_types(file=path)
        if unknown and not options.trust:
            raise Unusable(
                f"{path}: it has types that skops does not know to be harmless ({', '.join(unknown)}): "
                "say --trust if you know where the file comes from"
            )
        return io.load(path, trusted=unknown)
    if not options.trust:
        raise Unusable(
            f"{path}: reading a {path.suffix} file runs code from it: say --trust if you know where it comes from, "
            "or save it with skops"
        )
    return joblib.load(path)


def _answer(call: Callable[[Any], Any], rows: Array) -> Array:
    """An estimator's output as an array: texts as objects, and numbers in 64 bits."""
    answer = call(rows)
    if isinstance(answer, list) and answer and isinstance(answer[0], np.ndarray):
        answer = _of_several(answer)
    value = np.asarray(answer)
    if value.dtype.kind in "OSU":
        return value.astype(str).astype(object)
    return value.astype({"f": np.float64, "b": np.bool_}.get(value.dtype.kind, np.int64))


def _of_several(shares: Sequence[Array]) -> Array:
    """Shares of the classes of several outputs, [rows, outputs, classes]: 0 where one has fewer."""
    whole = np.zeros((len(shares[0]), len(shares), max(one.shape[1] for one in shares)))
    for i, one in enumerate(shares):
        whole[:, i, : one.shape[1]] = one
    return whole


def _datatype(example: Array) -> str:
    return {"O": "BYTES", "f": "FP64", "b": "BOOL"}.get(example.dtype.kind, "INT64")

"""Serves the models in a folder: a Python file with models, an ONNX network, or a scikit-learn
estimator.

    python loader.py /mnt/models

The folder has a model.py, or one file named *.onnx, or one named *.joblib, *.pkl or *.pickle. The
path may also name the file. A model has the name $MODEL_NAME, or that of its file (in "model.py",
the declared name), and version $MODEL_VERSION, or 1.

In ONNX a first dimension without a size counts rows, if all inputs and outputs have it and share
its name; $MODEL_BATCHED=true or false overrides this. An estimator gets "input-0", FP64, and
answers "predict", and "predict_proba" if it can. Unpickling one runs code from its file.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from shiva_container import DeclarationError, Model, Tensor, model, serve
from shiva_container.check import load, sample

log = logging.getLogger("loader")

ONNX_TYPES = {
    "tensor(float)": "FP32", "tensor(double)": "FP64", "tensor(float16)": "FP16", "tensor(bool)": "BOOL",
    "tensor(string)": "BYTES",
} | {f"tensor({kind}{bits})": f"{kind.upper()}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}

ESTIMATORS = (".joblib", ".pkl", ".pickle")


class Unusable(Exception):
    """The folder cannot be served; the text has the reason, and what is expected."""


def find(path: Path) -> Path:
    """The file to serve."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise Unusable(f"{path}: there is no such file or folder")
    if (path / "model.py").is_file():
        return path / "model.py"
    files = sorted(one for one in path.iterdir() if one.is_file())
    for suffixes in ((".onnx",), ESTIMATORS):
        fitting = [one for one in files if one.suffix in suffixes]
        if len(fitting) > 1:
            raise Unusable(f"{path}: {', '.join(one.name for one in fitting)}: expected one of them")
        if fitting:
            return fitting[0]
    there = ", ".join(sorted(one.name for one in path.iterdir())) or "nothing"
    raise Unusable(f"{path}: expected model.py, or a file *.onnx, *.joblib, *.pkl or *.pickle, and there is {there}")


def read(path: Path, environment: dict[str, str]) -> list[Model[..., Any]]:
    """The models of a file, with the names that the environment gives."""
    name = environment.get("MODEL_NAME", "")
    if path.suffix == ".py":
        return python_file(path, name)
    version = environment.get("MODEL_VERSION", "") or "1"
    if path.suffix == ".onnx":
        return [network(path, name or path.stem, version, environment.get("MODEL_BATCHED", ""))]
    if path.suffix in ESTIMATORS:
        return [estimator(path, name or path.stem, version)]
    raise Unusable(f"{path}: expected a file *.py, *.onnx, *.joblib, *.pkl or *.pickle")


def python_file(path: Path, name: str) -> list[Model[..., Any]]:
    """The models that a file declares. A single model takes the given name."""
    models = load(str(path))
    if not models:
        raise Unusable(f"{path}: no function is decorated with @model")
    if name and len(models) == 1:
        models[0].name = name
    elif name and name not in [one.name for one in models]:
        log.warning("%s declares %s, and none is called %s", path, ", ".join(map(str, models)), name)
    return models


def network(path: Path, name: str, version: str, batched: str) -> Model[..., Any]:
    """An ONNX network, run by ONNX Runtime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path))
    outputs = []
    for node in session.get_outputs():
        if node.type in ONNX_TYPES:
            outputs.append(node)
        else:  # such as the maps in which scikit-learn exporters return probabilities
            log.warning("%s: output %s is left out: it is %s, no tensor", path, node.name, node.type)
    for node in session.get_inputs():
        if node.type not in ONNX_TYPES:
            raise Unusable(f"{path}: input {node.name} is {node.type}: expected {', '.join(ONNX_TYPES)}")
    if not outputs:
        raise Unusable(f"{path}: no output is a tensor of {', '.join(ONNX_TYPES)}")
    if batched not in ("", "true", "false"):
        raise Unusable(f"MODEL_BATCHED={batched}: expected true or false")
    rows = counts_rows(session.get_inputs(), outputs) if batched == "" else batched == "true"
    names = [node.name for node in outputs]

    @model(
        name=name,
        version=version,
        platform="onnxruntime",
        batched=rows,
        inputs=[Tensor(node.name, ONNX_TYPES[node.type], sizes(node.shape)) for node in session.get_inputs()],
        outputs=[Tensor(node.name, ONNX_TYPES[node.type], sizes(node.shape)) for node in outputs],
    )
    def run(*inputs: Any) -> Any:
        feeds = dict(zip((node.name for node in session.get_inputs()), map(plain, inputs), strict=True))
        return tuple(session.run(names, feeds))

    return warmed(run, path)


def plain(array: Any) -> Any:
    """Text in the form that ONNX Runtime takes."""
    if array.dtype != object:
        return array
    return np.array([one.decode() for one in array.flat], object).reshape(array.shape)


def sizes(shape: Sequence[object]) -> list[int]:
    """A shape of ONNX, where an open size is a name or None."""
    return [one if isinstance(one, int) and one > 0 else -1 for one in shape]


def counts_rows(inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
    """Whether the first dimension of each tensor is the same one, of any size."""
    shapes = [node.shape for node in (*inputs, *outputs)]
    if not all(shape and sizes(shape)[0] == -1 for shape in shapes):
        return False
    # ONNX Runtime calls an unnamed dimension None, or unk__ and a number.
    given = {shape[0] for shape in shapes if isinstance(shape[0], str) and not shape[0].startswith("unk__")}
    return len(given) <= 1


def estimator(path: Path, name: str, version: str) -> Model[..., Any]:
    """A fitted estimator of scikit-learn, or a pipeline."""
    import joblib

    fitted = joblib.load(path)
    features = getattr(fitted, "n_features_in_", None)
    if not hasattr(fitted, "predict") or not isinstance(features, int | np.integer):
        raise Unusable(
            f"{path}: expected a fitted estimator of scikit-learn with predict and n_features_in_, "
            f"got {type(fitted).__name__}; serve others by a model.py"
        )
    ways: list[tuple[str, Callable[[Any], Any]]] = [("predict", fitted.predict)]
    if hasattr(fitted, "predict_proba"):
        ways.append(("predict_proba", fitted.predict_proba))
    examples = [(way, answer(call, np.zeros((1, features)))) for way, call in ways]
    classes = getattr(fitted, "classes_", ())

    @model(
        name=name,
        version=version,
        platform="scikit-learn",
        batched=True,
        inputs=[Tensor("input-0", "FP64", [-1, int(features)])],
        outputs=[
            Tensor(
                way,
                datatype(example),
                [-1, *example.shape[1:]],
                labels=[str(one) for one in classes] if way == "predict_proba" else (),
            )
            for way, example in examples
        ],
    )
    def predict(rows: Any, /) -> Any:
        return tuple(answer(call, rows) for _, call in ways)

    return warmed(predict, path)


def answer(call: Callable[[Any], Any], rows: Any) -> Any:
    """An estimator's output as an array: texts as objects, and numbers in 64 bits."""
    value = np.asarray(call(rows))
    if value.dtype.kind in "OSU":
        return value.astype(str).astype(object)
    return value.astype({"f": np.float64, "b": np.bool_}.get(value.dtype.kind, np.int64))


def datatype(example: Any) -> str:
    return {"O": "BYTES", "f": "FP64", "b": "BOOL"}.get(example.dtype.kind, "INT64")


def warmed(made: Model[..., Any], path: Path) -> Model[..., Any]:
    """Make a model run once before it registers, with two rows if it counts rows."""

    @made.warmup
    def warmup() -> None:
        rows = 2 if made.batched else 1
        answers = made(*[sample(tensor, rows, 1) for tensor in made.inputs])
        for tensor, array in zip(made.outputs, answers, strict=True):
            if made.batched and len(array) != rows:
                raise Unusable(
                    f"{path}: two rows went in, and output {tensor.name} has {len(array)}: its first dimension does "
                    "not count rows; say MODEL_BATCHED=false"
                )

    return made


def main(arguments: Sequence[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    if len(arguments) != 1:
        print("usage: loader.py FOLDER", file=sys.stderr)
        return 2
    try:
        models = read(find(Path(arguments[0])), dict(os.environ))
    except (Unusable, DeclarationError) as e:
        print(e, file=sys.stderr)
        return 1
    serve(*models)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

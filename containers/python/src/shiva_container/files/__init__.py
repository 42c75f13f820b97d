"""Model files as networks: functions on numpy arrays with the names and types that they declare.

:func:`read` chooses the reader by the file's name:

    *.onnx                  ONNX Runtime, or OpenVINO if the device says so
    *.xml (with its .bin)   OpenVINO
    *.tflite                LiteRT
    *.skops                 scikit-learn
    *.joblib *.pkl *.pickle scikit-learn; reading one runs code from it, so that it needs ``trust``
    *.ubj, *.json           XGBoost
    *.txt                   LightGBM

Each reader needs a package of its own: ``pip install 'shiva-container[onnx]'`` and so on.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path

from .network import Network, Options, Port, Unusable, line, processors
from .told import labelled

READERS = {
    ".onnx": "onnx",
    ".xml": "openvino",
    ".tflite": "tflite",
    ".skops": "sklearn",
    ".joblib": "sklearn",
    ".pkl": "sklearn",
    ".pickle": "sklearn",
    ".ubj": "xgboost",
    ".json": "xgboost",
    ".txt": "lightgbm",
}
"""The reader of each kind of file: a module of this package, and an extra of the distribution."""


def is_model(path: Path) -> bool:
    """Whether a file is a model by its name. Names of classes may be beside it: see tasks.py."""
    return path.suffix.lower() in READERS and not path.name.endswith("labels.txt")


def read(path: str | os.PathLike[str], options: Options | None = None) -> Network:
    """The network in a file; :class:`Unusable` with the reason if it cannot be served."""
    path, options = Path(path), options or Options()
    kind = READERS.get(path.suffix.lower())
    if kind is None:
        raise Unusable(f"{path}: expected a file {', '.join(f'*{one}' for one in READERS)}")
    if not path.is_file():
        raise Unusable(f"{path}: there is no such file")
    if kind == "onnx" and options.device.startswith("openvino:"):
        kind = "openvino"
    try:
        reader: Callable[[Path, Options], Network] = importlib.import_module(f".{kind}", __name__).read
    except ModuleNotFoundError as e:
        raise Unusable(f"{path}: {e.name} is not installed: pip install 'shiva-container[{kind}]'") from e
    except ImportError as e:  # such as a library of CUDA that is missing
        raise Unusable(f"{path}: {line(e)}") from e
    try:
        return labelled(reader(path, options))
    except Unusable:
        raise
    except Exception as e:  # whatever the runtimes raise for a file that they cannot read
        raise Unusable(f"{path}: {kind} cannot read {_looks(path)}: {line(e)}") from e


def _looks(path: Path) -> str:
    """What a file is that its reader does not know, as far as size and first bytes tell."""
    try:
        with path.open("rb") as file:
            head = file.read(len(POINTER))
        size = path.stat().st_size
    except OSError as e:
        return f"this file ({e.strerror})"
    if head == POINTER:
        return "a pointer to a file in Git LFS, which git lfs pull fetches"
    start = head.split(b"\n")[0]
    if start and start.isascii() and start.decode().isprintable():
        return f"{size} bytes that begin with {start.decode()!r}"
    return f"a file of {size} bytes"


POINTER = b"version https://git-lfs"
"""How a file begins that stands for another one, in a clone without Git LFS."""

__all__ = ["READERS", "Network", "Options", "Port", "Unusable", "is_model", "line", "processors", "read"]

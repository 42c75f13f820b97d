"""What exporters tell about a network beside it: its task, its classes, the size of its pictures.

All of it is given in the form that Ultralytics writes into ONNX files, where it reads ``task``,
``names``, ``imgsz`` and more as Python literals: see tasks.py.
"""

from __future__ import annotations

import ast
import json
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..tensors import MAX_LABEL, MAX_LABELS
from .network import Network, Port

MOST = 1 << 20
"""Bytes of the largest file of metadata that is read."""


def beside(path: Path) -> dict[str, str]:
    """The metadata.yaml that Ultralytics writes beside an OpenVINO file."""
    try:
        with path.with_name("metadata.yaml").open(encoding="utf-8", errors="replace") as file:
            return _yaml(file.read(MOST))
    except OSError:
        return {}


def _yaml(text: str) -> dict[str, str]:
    """The members of a document whose values are plain, or lists or mappings of plain values.

    Anything deeper is left out: a parser of YAML would be one more package.
    """
    out: dict[str, Any] = {}
    key = ""
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, value = line.strip().partition(":")
        if line.startswith("- ") and isinstance(out.get(key, []), list):
            out.setdefault(key, []).append(_plain(line[2:]))
        elif line[0] in " \t" and colon and isinstance(out.get(key, {}), dict):
            out.setdefault(key, {})[_plain(name)] = _plain(value)
        elif line[0] not in " \t-" and colon:
            key = name
            if value.strip():
                out[key] = _plain(value)
    return {name: str(value) for name, value in out.items()}


def _plain(text: str) -> Any:
    """A value of YAML: a number as such, all else as text."""
    text = text.strip()
    if text.startswith("'") and text.endswith("'") and len(text) > 1:
        return text[1:-1].replace("''", "'")
    with suppress(ValueError):
        return int(text) if text.lstrip("-").isdigit() else json.loads(text) if text[:1] in '"[' else text
    return text


def of_model_api(info: Mapping[str, str], outputs: Sequence[Port]) -> dict[str, str]:
    """What ``rt_info`` of an OpenVINO file says in the words of OpenVINO's Model API.

    A task is taken over only if the picture is prepared here as the file wants it: values from 0 to
    1, in the order red, green, blue.
    """
    out: dict[str, str] = {}
    names = info.get("labels", "").split()
    if names:
        out["names"] = str(dict(enumerate(names)))
    try:
        scales = {float(one) for one in info.get("scale_values", "").split()}
        means = {float(one) for one in info.get("mean_values", "0").split()}
    except ValueError:
        return out
    if scales != {255} or means != {0} or info.get("reverse_input_channels", "YES").lower() in ("no", "false", "0"):
        return out
    kind, shapes = info.get("model_type", "").lower(), [port.shape for port in outputs]
    if kind == "classification":
        out["task"] = "classify"
    elif kind == "yolo" and [len(shape) for shape in shapes] == [3] and 4 + len(names) in shapes[0][1:]:
        out["task"] = "detect"
    return out


def inside(path: Path) -> dict[str, str]:
    """The files that are appended to a TensorFlow Lite file, as an archive: Ultralytics' metadata,
    or the names of classes that TensorFlow's metadata writer associates with an output."""
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {one.filename: one.file_size for one in archive.infolist() if one.file_size <= MOST}
            if "metadata.json" in sizes:
                said = json.loads(archive.read("metadata.json"))
                return {key: _literal(value) for key, value in said.items()} if isinstance(said, dict) else {}
            # Other languages have a suffix: labels.txt, labels-de.txt.
            lists = sorted((one for one in sizes if "label" in one.lower() and one.endswith(".txt")), key=len)
            if lists:
                lines = archive.read(lists[0]).decode("utf-8", "replace").splitlines()
                return {"names": str(dict(enumerate(line.strip() for line in lines)))}
    except (OSError, ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile):
        pass  # none, or one that cannot be read: the network is what counts
    return {}


def _literal(value: Any) -> str:
    """A value of JSON as a literal; JSON has no numbers as keys."""
    if isinstance(value, dict) and all(key.isdigit() for key in value):
        value = {int(key): one for key, one in value.items()}
    return str(value)


def literal(text: str) -> Any:
    """A value as Python writes it, or None."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None


def labelled(network: Network) -> Network:
    """The network with the names of its classes at the output that has a value for each."""
    names = literal(network.metadata.get("names", ""))
    if not isinstance(names, list | tuple | dict):
        return network
    listed = [str(one) for one in (names.values() if isinstance(names, dict) else names)]
    if isinstance(names, dict) and list(names) != list(range(len(names))):
        return network
    fits = [port for port in network.outputs if len(port.shape) > 1 and port.shape[-1] == len(listed)]
    if len(fits) != 1 or fits[0].labels or not 1 < len(listed) <= MAX_LABELS:
        return network
    if any(len(one.encode()) > MAX_LABEL for one in listed) or not fits[0].datatype.startswith(("FP", "INT", "UINT")):
        return network
    outputs = [replace(port, labels=listed) if port is fits[0] else port for port in network.outputs]
    return replace(network, outputs=outputs)

"""Networks as their users declare them: with other shapes, fewer outputs, and names of classes.

A repository of Triton says in its config.pbtxt what clients see of a network; the server passes it
on. What it says must fit the network: a client that was promised a shape gets it, or an error at
the start says why not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .files.network import Network, Port, Unusable
from .tensors import Array


@dataclass(frozen=True)
class _Seen:
    """A tensor as clients see it, and its place among those of the network."""

    place: int
    port: Port
    shape: Sequence[int] | None
    """What the network has instead, without the rows if these are counted; None: the same."""


def declared(network: Network, text: str) -> Network:
    """The network with the inputs and outputs of a declaration in JSON: ``max_batch``, ``inputs``
    and ``outputs``, lists of objects with ``name``, ``datatype`` and ``dims``, and where they apply
    ``reshape``, ``scalar`` and ``labels``, the file of the classes' names.

    If ``max_batch`` is above 0, the first dimension of the network counts rows, and dims and
    reshape leave it out. ``scalar``: the network has no dimension where clients have dims.
    """
    said = json.loads(text)
    rows = said["max_batch"] > 0
    inputs = [_seen(one, network.inputs, rows, "input") for one in said["inputs"]] or _all(network.inputs)
    outputs = [_seen(one, network.outputs, rows, "output") for one in said["outputs"]] or _all(network.outputs)
    places = {one.place for one in inputs}
    if missing := sorted(one.name for i, one in enumerate(network.inputs) if i not in places):
        raise Unusable(f"config.pbtxt does not have the network's inputs {', '.join(missing)}")

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        given: list[Any] = [None] * len(network.inputs)
        for one, array in zip(inputs, arrays, strict=True):
            given[one.place] = _reshaped(array, one.shape, rows)
        answers = network.run(given)
        return [
            _reshaped(np.asarray(answers[one.place]), None if one.shape is None else one.port.shape[int(rows) :], rows)
            for one in outputs
        ]

    return replace(network, inputs=[one.port for one in inputs], outputs=[one.port for one in outputs], run=run)


def _all(ports: Sequence[Port]) -> list[_Seen]:
    return [_Seen(place, port, None) for place, port in enumerate(ports)]


def _seen(said: dict[str, Any], ports: Sequence[Port], rows: bool, kind: str) -> _Seen:
    name = said["name"]
    names = [port.name for port in ports]
    place, dims = names.index(name) if name in names else _numbered(name, kind), list(said["dims"])
    if not 0 <= place < len(ports):
        raise Unusable(f"config.pbtxt has the {kind} {name}, and the network has {', '.join(names)}")
    port = replace(ports[place], name=name)
    if said["datatype"] != port.datatype:
        raise Unusable(f"config.pbtxt says that {name} is {said['datatype']}, and the network has {port.datatype}")
    shape = [] if said.get("scalar") or (dims == [1] and rows and len(port.sizes or ()) == 1) else said.get("reshape")
    inner = dims if shape is None else shape
    if port.sizes is not None:
        own = list(port.sizes[1:] if rows else port.sizes)
        free = [one if isinstance(one, int) else -1 for one in own]
        fits = len(own) == len(inner) and all(a == b or -1 in (a, b) for a, b in zip(free, inner, strict=True))
        if (rows and not port.sizes) or not fits:
            counted = ", after the rows that max_batch_size counts" if rows else ""
            raise Unusable(f"config.pbtxt says that {name} has the shape {inner}{counted}, and the network has {port}")
    lead: list[int | str] = list((port.sizes or ("",))[:1]) if rows else []
    labels = _lines(Path(said["labels"])) if said.get("labels") else port.labels
    sizes = (*lead, *(one if one >= 0 else "" for one in dims))
    return _Seen(place, replace(port, sizes=sizes, labels=labels), shape)


def _numbered(name: str, kind: str) -> int:
    """The place in a name by which Triton's clients know a tensor of a file without names, as that
    of trees: input__0. -1: it is none."""
    number = name.lower().removeprefix(f"{kind}__")
    return int(number) if number.isdecimal() else -1


def _lines(path: Path) -> list[str]:
    """The names of classes in a file, one in a line."""
    try:
        return [line.strip() for line in path.read_text("utf-8", "replace").splitlines()]
    except OSError as e:
        raise Unusable(f"{path}: {e.strerror}") from e


def _reshaped(array: Array, shape: Sequence[int] | None, rows: bool) -> Array:
    if shape is None:
        return array
    return array.reshape([len(array), *shape] if rows else shape)

"""Requests and answers: from inputs to a message, and from a message to outputs by name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from . import wire
from .errors import ProtocolError, TimedOut, raise_for
from .wire import Array, Message


def question(model: str, inputs: tuple[Any, ...], *, timeout: float | None, metadata: dict[str, Any]) -> Message:
    """The message of a request to a model.

    The inputs are arrays in the order of the model's declaration, or one mapping from names to
    arrays.
    """
    message = Message(model, {k: v for k, v in metadata.items() if v is not None})
    if timeout is not None:
        if not 0 < timeout < math.inf:
            raise ValueError(f"timeout is {timeout}, expected a positive number of seconds, or None")
        message.metadata["timeout_ms"] = timeout * 1000
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        named = {name: _file(value) for name, value in inputs[0].items()}
        texts = {name: _texts(name, value) for name, value in named.items() if wire.is_text(value)}
        arrays = {name: _array(name, value) for name, value in named.items() if name not in texts}
        if texts:
            message.metadata["__texts__"] = texts
        message.metadata["__tensors__"] = list(arrays)
        message.tensors = list(arrays.values())
        return message
    for i, value in enumerate(map(_file, inputs)):
        if wire.is_text(value):
            raise TypeError(f"input {i} is text, which needs the name of its input: infer({model!r}, {{'text': …}})")
        message.tensors.append(_array(i, value))
    return message


def newest(
    stream: str | None, user: str | None, max_age: float | None, after: Answer | int | None, wait: bool
) -> dict[str, Any]:
    """The metadata of a question for the newest answer of a stream."""
    if isinstance(after, Answer):
        if "seq" not in after.metadata:
            raise ValueError("after is an answer without a seq: it is not of a stream")
        after = after.metadata["seq"]
    age = None if max_age is None else max_age * 1000
    return {"stream": stream, "user": user, "max_age_ms": age, "after": after, "wait": wait or None}


def _array(name: str | int, value: Any) -> Array:
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ValueError(f"input {name!r} has masked values, and models get no masks: pass .filled(a value for them)")
    return np.asarray(value)


def _file(value: Any) -> Any:
    """Bytes as an array: to an input of pictures they are a file, to one of texts one text."""
    return np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value


def _texts(name: str, value: Any) -> Any:
    try:
        return wire.texts(value)
    except ProtocolError as error:
        raise ProtocolError(f"input {name!r}: {error}") from None


def reduce_timeout(message: Message, timeout: float | None, waited: float) -> bool:
    """Tell the server what is left of a timeout after a wait; False: the message is as it was.

    TimedOut if nothing is left.
    """
    if timeout is None or waited < 0.001 or message.metadata.get("timeout_ms") != timeout * 1000:
        return False
    if waited >= timeout:
        raise TimedOut(f"the request was not sent within {timeout} s", may_have_run=False)
    message.metadata["timeout_ms"] = (timeout - waited) * 1000
    return True


class Answer(Mapping[str, Array]):
    """The outputs of a model by name, and by position as ``tensors``.

    Attributes:
        tensors: in the order in which the server sent them, without texts
        metadata: all metadata of the answer, such as ``model_version``
    """

    def __init__(self, message: Message) -> None:
        raise_for(message)
        self.tensors = message.tensors
        self.metadata = message.metadata
        names = message.metadata.get("__tensors__")
        if not isinstance(names, list) or len(names) != len(self.tensors) or not all(isinstance(n, str) for n in names):
            names = [str(i) for i in range(len(self.tensors))]  # from a server without names
        self._outputs: dict[str, Array] = dict(zip(names, self.tensors, strict=True))
        texts = message.metadata.get("__texts__")
        if isinstance(texts, dict):
            self._outputs.update({name: wire.array_of_texts(value) for name, value in texts.items()})

    def __getitem__(self, name: str) -> Array:
        """The output of that name."""
        try:
            return self._outputs[name]
        except KeyError:
            raise KeyError(f"no output {name!r}; there are {', '.join(self._outputs) or 'none'}") from None

    def __iter__(self) -> Iterator[str]:
        """The names of the outputs."""
        return iter(self._outputs)

    def __len__(self) -> int:
        """How many outputs there are."""
        return len(self._outputs)

    def __repr__(self) -> str:
        outputs = ", ".join(f"{name}: {array.dtype}{list(array.shape)}" for name, array in self._outputs.items())
        return f"Answer({outputs})"

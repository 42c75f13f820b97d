"""Memory for large tensors that the client shares with a server on the same machine."""

from __future__ import annotations

import mmap
import os
import secrets
import threading
import time
import warnings
import weakref
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from . import wire
from .errors import ProtocolError
from .wire import Array, Message

DIRECTORY = "/dev/shm"
WORTH = 64 << 10  # size in bytes from which tensors use shared memory
ALIGNED = 64
ROUTES = 1024  # whose output sizes are remembered, at most
REGIONS = "v2/systemsharedmemory/region/"

DATATYPES = {np.dtype(f"{kind}{size}"): f"{name}{8 * size}" for kind, name, sizes in (
    ("u", "UINT", (1, 2, 4, 8)), ("i", "INT", (1, 2, 4, 8)), ("f", "FP", (2, 4, 8)), ("c", "COMPLEX", (8, 16)),
) for size in sizes} | {np.dtype(bool): "BOOL"}  # fmt: skip
if np.dtype("longdouble").itemsize == 16:
    DATATYPES[np.dtype("longdouble")] = "LONGDOUBLE"
DTYPES = {name: dtype for dtype, name in DATATYPES.items()}

Span = tuple[int, int]  # offset and size


def aligned(size: int) -> int:
    """The bytes that a tensor of this size occupies."""
    return -(-size // ALIGNED) * ALIGNED


class Parts(NamedTuple):
    """The parts that a request owns until it is answered."""

    inputs: list[Span]
    area: Span | None  # for outputs
    whole: Message | None = None  # to send again; placed tensors are views of the memory
    since: float = 0.0  # when it was placed, on the clock of time.monotonic()


class Part(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of an output. They are freed when no array refers to them any more."""


class Memory:
    """The memory of one connection. A request owns parts of it until it ends.

    Outputs keep their parts until the array is no longer referenced. From the second request of a
    route on, earlier answers determine how much room outputs get.
    """

    def __init__(self, size: int) -> None:
        """Make the memory. It has a name until ``unlink``, so that the server can open it."""
        self.name = f"shiva-{os.getpid()}-{secrets.token_hex(8)}"
        self._path = f"{DIRECTORY}/{self.name}"
        self._size = size
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        weakref.finalize(self, os.close, self._file)
        try:
            os.ftruncate(self._file, size)
            self._map = mmap.mmap(self._file, size)
        except BaseException:
            self.unlink()
            raise
        self._lock = threading.Lock()
        self._free: list[Span] = [(0, size)]  # by offset, never adjacent
        self._returned: deque[Span] = deque()  # of outputs: finalizers must not wait for a lock
        self._backed = 0  # bytes that are backed by pages
        self._lost = False  # the server has dropped it
        self._outputs: dict[str, int] = {}  # bytes of the large outputs in recent answers, by route

    def registration(self) -> Message:
        """The message that registers the memory with the server."""
        metadata = {"key": "/" + self.name, "offset": 0, "byte_size": self._size, "connection": True}
        return Message(f"{REGIONS}{self.name}/register", metadata)

    def unlink(self) -> None:
        """Remove its name. The memory lasts while the client or the server has it open."""
        os.unlink(self._path)

    def place(self, message: Message) -> tuple[Message, Parts]:
        """Place the large inputs of a message here, as far as there is room.

        The returned message has their places, and the place for outputs, in its metadata.
        """
        if self._lost or "shared_memory" in message.metadata:
            return message, Parts([], None)
        there: dict[str, Any] = {}
        metadata, tensors, spans = message.metadata, message.tensors, []
        views: list[Array | None] = [None] * len(tensors)
        names = metadata.get("__tensors__")
        if isinstance(names, list) and len(names) == len(tensors):
            left, tensors, inputs = [], [], []
            for i, (name, array) in enumerate(zip(names, message.tensors, strict=True)):
                datatype = DATATYPES.get(array.dtype.newbyteorder("="))
                span = self._take(array.nbytes, f"input {name!r}") if datatype and array.nbytes >= WORTH else None
                if not span:
                    left.append(name)
                    tensors.append(array)
                    continue
                spans.append(span)
                view: Array = np.ndarray(array.shape, array.dtype.newbyteorder("<"), self._map, span[0])
                np.copyto(view, array)
                views[i] = view
                inputs.append({"name": name, "datatype": datatype, "shape": list(array.shape), "region": self.name,
                               "offset": span[0], "byte_size": array.nbytes})  # fmt: skip
            if inputs:
                metadata, there["inputs"] = metadata | {"__tensors__": left}, inputs
        area = None
        if size := self._outputs.get(message.namespace):
            area = self._take(size, f"the output of {message.namespace!r}")
        if area:
            there["area"] = {"region": self.name, "offset": area[0], "byte_size": area[1]}
        if not there:
            return message, Parts([], None)
        whole = None
        if "stream" not in metadata:  # a frame is not sent again: the next one is newer
            # The caller may change its arrays once the request is sent.
            lasting = [
                array.copy() if view is None else view for array, view in zip(message.tensors, views, strict=True)
            ]
            whole = Message(message.namespace, message.metadata, lasting)
        sent = Message(message.namespace, metadata | {"shared_memory": there}, tensors)
        return sent, Parts(spans, area, whole, time.monotonic())

    def refused(self, answer: Message, parts: Parts) -> Message | None:
        """The request to send instead, if the server could not use this memory for it.

        The request was not executed. Its tensors are views of its parts. Nothing is placed here any
        more.
        """
        if answer.namespace != "!error" or answer.metadata.get("shared_memory") is not False:
            return None
        if not parts.inputs and not parts.area:
            return None
        self._lost = True
        if (whole := parts.whole) and isinstance(limit := whole.metadata.get("timeout_ms"), int | float):
            left = limit - (time.monotonic() - parts.since) * 1000
            whole.metadata = whole.metadata | {"timeout_ms": max(left, 0.001)}
        return whole

    def collect(self, answer: Message, parts: Parts) -> Message | ProtocolError:
        """Add the outputs in this memory to the answer, as if sent, and free the other parts."""
        if answer.namespace == "!error":
            self.give_back(parts)
            return answer
        here = answer.metadata.pop("shared_memory", None) if parts.area else None
        try:
            used = self._fetch(answer, here["outputs"], parts.area) if here and parts.area else 0
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            self.give_back(parts)
            return ProtocolError(f"the shared memory of an answer is {here!r:.300}: {error!r}")
        rest = (parts.area[0] + used, parts.area[1] - used) if parts.area and parts.area[1] > used else None
        self.give_back(Parts(parts.inputs, rest))
        self._learn(answer)
        return answer

    def _fetch(self, answer: Message, outputs: list[dict[str, Any]], area: Span) -> int:
        """Make the outputs views of the area, and return how much of it they take."""
        names = list(answer.metadata["__tensors__"])
        free = area[0]
        found: list[tuple[str, int, Array, Part, Span]] = []
        for one in outputs:
            dtype = DTYPES[one["datatype"]].newbyteorder("<")
            offset, size, shape, index = one["offset"], one["byte_size"], one["shape"], one.get("index", 0)
            if one["region"] != self.name or not free <= offset < offset + size <= sum(area) or offset % ALIGNED:
                raise ValueError(
                    f"output {one['name']!r} is outside the free part, from offset {free} on, of {area[1]} bytes"
                )
            if not 0 <= index <= len(names) + len(found):
                raise ValueError(f"output {one['name']!r} has index {index}")
            end = min(offset + aligned(size), sum(area))
            part = np.ndarray.__new__(Part, (size,), np.uint8, self._map, offset)
            array = part.view(dtype).reshape(shape).view(np.ndarray)
            found.append((one["name"], index, array, part, (free, end - free)))
            free = end
        for name, index, array, part, span in found:
            weakref.finalize(part, self._returned.append, span).atexit = False
            answer.tensors.insert(index, array)
            names.insert(index, name)
        answer.metadata["__tensors__"] = names
        return free - area[0]

    def _learn(self, answer: Message) -> None:
        """Note the size of an answer's outputs.

        The noted size shrinks by an eighth at a time: the next answer may be as large as before.
        """
        size = sum(aligned(array.nbytes) for array in answer.tensors if array.nbytes >= WORTH)
        old = self._outputs.get(answer.namespace, 0)
        size = max(size, old - old // 8)
        with self._lock:
            if size < WORTH:
                self._outputs.pop(answer.namespace, None)
                return
            if not old and len(self._outputs) >= ROUTES:
                self._outputs.clear()
            self._outputs[answer.namespace] = size

    def _take(self, size: int, what: str) -> Span | None:
        """Take the first free part that is large enough.

        Allocates its pages: writing to a mapping on a full file system would kill the process.
        """
        if size > self._size:
            text = f"{what} has {size} bytes and is sent over the connection: shared_memory is {self._size}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
            return None
        size = aligned(size)
        with self._lock:
            if self._returned:
                self._merge([self._returned.popleft() for _ in range(len(self._returned))])
            for i, (offset, room) in enumerate(self._free):
                if room < size:
                    continue
                if (end := offset + size) > self._backed:
                    try:
                        os.posix_fallocate(self._file, self._backed, end - self._backed)
                    except OSError:
                        return None
                    self._backed = end
                self._free[i : i + 1] = [(end, room - size)] if room > size else []
                return offset, size
        return None

    def give_back(self, parts: Parts) -> None:
        """End the use of parts."""
        with self._lock:
            self._merge(parts.inputs + ([parts.area] if parts.area else []))

    def _merge(self, spans: list[Span]) -> None:
        merged: list[Span] = []
        for offset, size in sorted(self._free + spans):
            if merged and sum(merged[-1]) == offset:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((offset, size))
        self._free = merged


def encode(message: Message, memory: Memory | None) -> tuple[list[bytes | memoryview], Parts | None]:
    """The pieces of a message for a connection with this memory, and its parts of the memory."""
    if not memory:
        return wire.encode(message), None
    message, parts = memory.place(message)
    try:
        return wire.encode(message), parts
    except BaseException:
        memory.give_back(parts)
        raise


def unnamed(message: Message, known: dict[str, list[str]]) -> Message | None:
    """Name the inputs of a message, if they need names and the model's names are known.

    If they are not known, returns the request for them.
    """
    if "__tensors__" in message.metadata or not any(array.nbytes >= WORTH for array in message.tensors):
        return None
    model = message.namespace
    if model in known:
        if len(message.tensors) <= len(known[model]):  # optional inputs at the end are left out
            message.metadata["__tensors__"] = known[model][: len(message.tensors)]
        return None
    name, _, version = model.partition("/")
    return Message(f"v2/models/{name}/versions/{version}" if version else f"v2/models/{name}")


def note_names(message: Message, description: Message, known: dict[str, list[str]]) -> None:
    """Note the names in the answer to ``unnamed``, for this message and later ones."""
    if description.namespace == "!error":
        return  # the answer to the request itself will report the error
    known[message.namespace] = [one["name"] for one in description.metadata["inputs"]]
    unnamed(message, known)

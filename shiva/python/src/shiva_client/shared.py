"""Memory that the client shares with a server on the same machine: large inputs are left there instead of sent."""

from __future__ import annotations

import mmap
import os
import secrets
import threading
from typing import Any

import numpy as np

from .wire import Message

DIRECTORY = "/dev/shm"
WORTH = 64 << 10  # bytes from which on an input is left in memory
ALIGNED = 64
REGIONS = "v2/systemsharedmemory/region/"

DATATYPES = {np.dtype(f"{kind}{size}"): f"{name}{8 * size}" for kind, name, sizes in (
    ("u", "UINT", (1, 2, 4, 8)), ("i", "INT", (1, 2, 4, 8)), ("f", "FP", (2, 4, 8)),
) for size in sizes} | {np.dtype(bool): "BOOL"}  # fmt: skip

Span = tuple[int, int]  # offset and size


class Memory:
    """The memory of one connection. A request has its parts of it until its answer is there, or the connection ends."""

    def __init__(self, size: int) -> None:
        """Make it. The pages are taken at once: a file system that is full would kill whoever writes to one later."""
        self.name = f"shiva-{os.getpid()}-{secrets.token_hex(8)}"
        self._path = f"{DIRECTORY}/{self.name}"
        self._size = size
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, size)
            self._map = mmap.mmap(file, size)
        except BaseException:
            self.unlink()
            raise
        finally:
            os.close(file)
        self._lock = threading.Lock()
        self._free: list[Span] = [(0, size)]  # by offset, none next to another

    def registration(self) -> Message:
        """What tells the server of it."""
        return Message(f"{REGIONS}{self.name}/register", {"key": "/" + self.name, "offset": 0, "byte_size": self._size})

    def unregistration(self) -> Message:
        """What tells the server that it is not needed any more."""
        return Message(f"{REGIONS}{self.name}/unregister", {})

    def unlink(self) -> None:
        """Take its name away: it lasts as long as the client and the server have it, and no longer."""
        os.unlink(self._path)

    def place(self, message: Message) -> tuple[Message, list[Span]]:
        """Leave the large inputs of a message here, as far as there is room, and say in its metadata where they are."""
        names = message.metadata.get("__tensors__")
        if not isinstance(names, list) or len(names) != len(message.tensors):
            return message, []
        inputs, spans, left, tensors = [], [], [], []
        for name, array in zip(names, message.tensors, strict=True):
            datatype = DATATYPES.get(array.dtype.newbyteorder("="))
            span = self._take(array.nbytes) if datatype and array.nbytes >= WORTH else None
            if not span:
                left.append(name)
                tensors.append(array)
                continue
            spans.append(span)
            there = np.ndarray(array.shape, array.dtype.newbyteorder("<"), self._map, span[0])
            np.copyto(there, array)
            inputs.append({"name": name, "datatype": datatype, "shape": list(array.shape), "region": self.name,
                           "offset": span[0], "byte_size": array.nbytes})  # fmt: skip
        if not inputs:
            return message, []
        metadata: dict[str, Any] = message.metadata | {"__tensors__": left, "shared_memory": {"inputs": inputs}}
        return Message(message.namespace, metadata, tensors), spans

    def _take(self, size: int) -> Span | None:
        """The first part that is large enough."""
        size = -(-size // ALIGNED) * ALIGNED
        with self._lock:
            for i, (offset, room) in enumerate(self._free):
                if room >= size:
                    self._free[i : i + 1] = [(offset + size, room - size)] if room > size else []
                    return offset, size
        return None

    def give_back(self, spans: list[Span]) -> None:
        """End the use of parts."""
        with self._lock:
            merged: list[Span] = []
            for offset, size in sorted(self._free + spans):
                if merged and sum(merged[-1]) == offset:
                    merged[-1] = (merged[-1][0], merged[-1][1] + size)
                else:
                    merged.append((offset, size))
            self._free = merged

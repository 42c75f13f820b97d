"""Reuses the memory of large tensors: a fresh block costs several times what filling it costs."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import numpy as np

_KEPT = 4
_LARGEST = 64 << 20
_SMALLEST = 256 << 10
_LARGER = 8
"""The factor by which a block may be larger than the requested size.

Batches of one model have all sizes up to its largest, so the few free blocks become those of the
largest batches. The factor keeps a small array from holding the memory of a large one.
"""


class Block(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """Bytes whose slices tell by their lifetime whether anything refers to them.

    An array refers to the owner of its memory and not to the array that it is a view of, unless
    that is of another class: every array made from the memoryview of a slice refers to the slice.
    """


class Memory:
    """Blocks of bytes. Each is free again when no memoryview and no array refers to it.

    Any thread may use it.
    """

    def __init__(self) -> None:
        self._free: deque[Block] = deque(maxlen=_KEPT)

    def take(self, size: int) -> memoryview:
        """Writable memory of this size, with arbitrary contents. MemoryError or ValueError."""
        if not _SMALLEST <= size <= _LARGEST:
            return np.empty(size, np.uint8).data
        block = self._fitting(size)
        lent = block[:size]
        weakref.finalize(lent, self._free.append, block).atexit = False
        return lent.data

    def _fitting(self, size: int) -> Block:
        for _ in range(len(self._free)):
            try:
                block = self._free.popleft()
            except IndexError:  # another thread was faster
                break
            if size <= len(block) <= _LARGER * size:
                return block
            self._free.append(block)
        return Block(size, np.uint8)


def held(array: np.ndarray[Any, Any]) -> int:
    """The bytes that are not free while anything refers to an array: those of its whole block."""
    owner: object = array
    while isinstance(owner, np.ndarray | memoryview):
        base = owner.base if isinstance(owner, np.ndarray) else owner.obj
        if base is None:
            break
        owner = base
    return owner.nbytes if isinstance(owner, np.ndarray) else array.nbytes


MEMORY = Memory()
"""The memory of the process."""

"""Tensors in memory shared with a server on the same machine: the arena of containers/DESIGN.md.

The server makes the segments. A session maps them, reads inputs in place, and copies large outputs
into a segment of its own. A faulty segment is refused with the reason: its tensors travel as bytes.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from .memory import MEMORY, Block
from .tensors import Array, TensorError

with contextlib.suppress(ImportError):  # on a system without such memory, too
    import fcntl

log = logging.getLogger("shiva_container")

AVAILABLE = sys.platform == "linux"
MIN_SHARED = 32 << 10
"""Outputs of this many bytes or more go by shared memory, where there is some."""

_UNIT = 64
"""Regions of outputs begin at multiples of this, with a word for their owner."""
_FIRST = 4096
_TOKEN = 16


class Region(NamedTuple):
    """The memory of one output: its place for the server, and its bytes."""

    at: tuple[int, int, int]
    data: Array


class Loan(NamedTuple):
    """An input as its function receives it."""

    owner: weakref.ref[object]
    """Lives as long as anything refers to the bytes."""
    start: int
    """The address of the bytes."""
    size: int
    at: tuple[int, ...]
    """Their place in the server's memory; () if they are a copy."""

    def ahead(self, array: Array) -> int:
        """The offset of an array that is a part of this input; -1 if it is not."""
        if not array.flags.c_contiguous:
            return -1
        ahead = address(array) - self.start
        return ahead if 0 <= ahead <= self.size - array.nbytes else -1


class _Segment:
    """The mapping of a segment that the server offered. It lasts while anything refers to it."""

    def __init__(self, number: int, path: str, size: int, token: bytes, writable: bool) -> None:
        descriptor = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            if (found := os.fstat(descriptor).st_size) != size:
                raise OSError(f"{path} has {found} bytes, {size} were offered: is it another process's file?")
            if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise OSError(f"{path} may be truncated: it is not sealed")
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self._map = mmap.mmap(descriptor, size, access=access)
        finally:
            os.close(descriptor)
        if self._map[:_TOKEN] != token:
            raise OSError(f"{path} is another process's file: its first bytes are not the token")
        self.number = number
        self.inputs = not writable
        self.bytes = np.frombuffer(self._map, np.uint8).view(Block)
        self.address = address(self.bytes)
        self._words = self.bytes[: size & -4].view(np.uint32)
        self._lock = threading.Lock()
        self._taken: list[tuple[int, int]] = []

    def get(self, size: int) -> Region | None:
        """Memory for an output, in regions that the server has freed; None if too small."""
        need = _UNIT + (size + _UNIT - 1) // _UNIT * _UNIT
        with self._lock:
            taken = self._taken = [one for one in self._taken if self._words[one[0] // 4]]
            starts = [_FIRST, *(end for _, end in taken)]
            ends = [*(start for start, _ in taken), len(self.bytes)]
            place = next((i for i in range(len(starts)) if ends[i] - starts[i] >= need), None)
            if place is None:
                return None
            start = starts[place]
            taken.insert(place, (start, start + need))
            self._words[start // 4] = 1
        at = start + _UNIT
        return Region((self.number, at, size), self.bytes[at : at + size])

    def put(self, region: Region) -> None:
        """Free a region that the server was not told of."""
        self._words[(region.at[1] - _UNIT) // 4] = 0


def address(array: Array) -> int:
    """The address of an array's first element."""
    first: int = array.__array_interface__["data"][0]
    return first


class Arena:
    """The shared memory of one session.

    ``take`` and ``answered`` are for the session, one call at a time; the others are for the
    threads that compute, each for its own batches.
    """

    def __init__(self) -> None:
        self._segments: dict[int, _Segment] = {}
        self._outputs: _Segment | None = None
        self._given_up: dict[int, set[bytes]] = {}
        """Segments that no later batch names, and the batches before that point."""
        self._regions: dict[bytes, list[tuple[_Segment, Region]]] = {}
        """The memory for outputs that each batch has until it is answered."""
        self._gathered: dict[bytes, list[tuple[_Segment, Region]]] = {}
        """The same for memory that holds a gathered input and is no output yet."""

    def take(self, head: Mapping[str, object], pending: Collection[bytes]) -> list[dict[str, object]]:
        """Execute a message of the server while these batches are pending; the replies to it."""
        if isinstance(number := head.get("unmap"), int):
            return self._give_up(number, pending)
        number, use = head.get("segment"), head.get("use")
        path, size, token = head.get("path"), head.get("bytes"), head.get("token")
        if type(number) is not int:
            return []
        try:
            if use not in ("inputs", "outputs") or not isinstance(path, str) or type(size) is not int:
                raise ValueError(f"expected its use, path and bytes, got {use!r}, {path!r} and {size!r}")
            segment = _Segment(number, path, size, bytes.fromhex(str(token)), use == "outputs")
        except (OSError, ValueError, OverflowError) as e:
            log.warning("tensors go over the connection instead of shared memory (%s): %s", use, e)
            return [{"segment": number, "error": str(e)[:500]}]
        self._segments[number] = segment
        said: list[dict[str, object]] = [{"segment": number}]
        if use == "outputs":
            before, self._outputs = self._outputs, segment
            if before is not None:
                said += self._give_up(before.number, pending)
        return said

    def answered(self, batch_id: bytes) -> list[dict[str, object]]:
        """Note that a batch was answered; the messages for the server after that."""
        self._regions.pop(batch_id, None)
        if not self._given_up:
            return []
        for batches in self._given_up.values():
            batches.discard(batch_id)
        return self._unmapped()

    def _give_up(self, number: int, pending: Collection[bytes]) -> list[dict[str, object]]:
        if number in self._segments:
            self._given_up[number] = set(pending)
        return self._unmapped()

    def _unmapped(self) -> list[dict[str, object]]:
        over = [number for number, batches in self._given_up.items() if not batches]
        for number in over:
            del self._given_up[number], self._segments[number]
        return [{"unmapped": number} for number in over]

    def pieces(self, at: tuple[int, ...]) -> list[memoryview]:
        """The pieces of an input, in place: for code that keeps none of them beyond its batch."""
        return [piece.data for piece in self._pieces(at)]

    def _pieces(self, at: tuple[int, ...]) -> list[Array]:
        pieces: list[Array] = []
        for number, offset, size in zip(at[::3], at[1::3], at[2::3], strict=True):
            segment = self._segments.get(number)
            if segment is None:
                raise TensorError(f"segment {number} of shared memory was not offered")
            if offset < 0 or size < 0 or offset + size > len(segment.bytes):
                raise TensorError(
                    f"{size} bytes at {offset} are not in segment {number}, which has {len(segment.bytes)}"
                )
            pieces.append(segment.bytes[offset : offset + size])
        return pieces

    def input(self, at: tuple[int, ...], *, lend: bool, echo: bytes = b"") -> tuple[memoryview, Loan]:
        """The bytes of an input: a view of one piece, if it may be lent, else a copy.

        ``echo`` is a batch that is likely to return this input. Then several pieces, if they may be
        lent, are put together in memory for outputs, and need not be copied again.
        """
        pieces = self._pieces(at)
        start = address(pieces[0]) if pieces else 0
        size = sum(len(piece) for piece in pieces)
        if lend and len(pieces) == 1:
            view = pieces[0].data
            return view, Loan(weakref.ref(view.obj), start, size, at)
        if lend and echo and (taken := self._take(size)) is not None:
            self._gathered.setdefault(echo, []).append(taken)
            region = taken[1]
            np.concatenate(pieces, out=region.data)
            view = region.data[:].data
            return view.toreadonly(), Loan(weakref.ref(view.obj), address(region.data), size, region.at)
        whole = MEMORY.take(size)
        block = np.frombuffer(whole, np.uint8)
        if pieces:
            np.concatenate(pieces, out=block)
        return whole.toreadonly(), Loan(weakref.ref(whole.obj), address(block), size, ())

    def passed(self, batch_id: bytes, loan: Loan, ahead: int, size: int) -> tuple[int, ...]:
        """The server's place of an output that is a part of an input; () if it has to be copied.

        Memory for outputs that holds an input can become an output only as a whole, and only once.
        """
        if not loan.at:
            return ()
        if self._segments[loan.at[0]].inputs:
            return loan.at[0], loan.at[1] + ahead, size
        gathered = self._gathered.get(batch_id, [])
        for i, (segment, region) in enumerate(gathered):
            if region.at == (*loan.at[:2], size):
                self._regions.setdefault(batch_id, []).append((segment, region))
                del gathered[i]
                return region.at
        return ()

    def settle(self, batch_id: bytes) -> None:
        """Free the memory of gathered inputs of a batch that did not become its outputs."""
        for segment, region in self._gathered.pop(batch_id, []):
            segment.put(region)

    def output(self, batch_id: bytes, size: int) -> Region | None:
        """Memory for an output of a batch; None if the output has to be sent."""
        taken = self._take(size)
        if taken is None:
            return None
        self._regions.setdefault(batch_id, []).append(taken)
        return taken[1]

    def _take(self, size: int) -> tuple[_Segment, Region] | None:
        segment = self._outputs
        if segment is None or size < MIN_SHARED or (region := segment.get(size)) is None:
            return None
        return segment, region

    def put(self, batch_id: bytes) -> None:
        """Free a batch's memory for outputs, of which the server is not told."""
        for segment, region in self._regions.pop(batch_id, []):
            segment.put(region)
        self.settle(batch_id)

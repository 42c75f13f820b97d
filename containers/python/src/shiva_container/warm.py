"""Executing a network once in each size that may occur, before anybody waits for its answer.

Runtimes choose algorithms, and take memory, when they see a shape for the first time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from .files.network import Network
from .proof import Verdict, Way, made_up
from .tensors import Array

MOST = 64
"""The largest batch that is warmed up: larger ones are rare, and take memory when they occur."""

LONG = 10.0
"""Seconds that all sizes may take together; those that would take longer are left out."""


def warm(network: Network, verdict: Verdict) -> list[int]:
    """Execute batches of one row, two, four and so on; the sizes that were executed."""
    row = made_up(network)
    if row is None or verdict.way not in (Way.ROWS, Way.INDEXED):
        return []  # the proof has executed the only size, or nothing can be made up
    largest = min(verdict.most or MOST, MOST)
    sizes = sorted({*(2**i for i in range(largest.bit_length())), largest})
    done: list[int] = []
    began = last = time.monotonic()
    for size in sizes:
        now = time.monotonic()
        if now - began + 2 * (now - last) > LONG:  # twice the rows take twice as long
            break
        last = now
        try:
            network.run(_rows(row, size))
        except Exception:  # such as memory that does not suffice: larger ones would not fare better
            break
        done.append(size)
    return done


def _rows(row: Sequence[Array], size: int) -> list[Array]:
    return [one.repeat(size, axis=0) for one in row]

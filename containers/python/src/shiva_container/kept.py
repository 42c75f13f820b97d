"""Decoded pictures that are kept for the next batch of the request that they came with."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

from .memory import held
from .regions import Picture

MOST, MOST_BYTES = 8, 128 << 20
"""How many pictures are kept at most, and how many bytes of memory they hold together."""
IDLE_SECONDS = 1.0
"""How long a picture is kept while nothing is computed."""


class _Entry:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.picture: Picture | None = None
        self.used = 0.0


class Kept:
    """The pictures that were used last. Any thread may use it."""

    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[Picture | None], Picture]) -> Picture:
        """The picture of a key: what ``make`` returns for the one that is kept, or for None.

        Of several threads that need the same picture, one makes it.
        """
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            entry.used = time.monotonic()
        with entry.lock:
            picture = entry.picture = make(entry.picture)
        with self._lock:
            while self._entries and (len(self._entries) > self._most or self._bytes() > self._most_bytes):
                self._entries.popitem(last=False)
        return picture

    def free(self, now: float) -> None:
        """Keep nothing that has not been used for a while."""
        if not self._entries:
            return
        with self._lock:
            for key in [key for key, entry in self._entries.items() if now - entry.used > IDLE_SECONDS]:
                del self._entries[key]

    @property
    def bytes(self) -> int:
        """The bytes that all pictures hold."""
        with self._lock:
            return self._bytes()

    def _bytes(self) -> int:
        return sum(held(entry.picture.pixels) for entry in self._entries.values() if entry.picture is not None)


KEPT = Kept()
"""The pictures of the process."""

"""The next batch's pictures are decoded while the function computes."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable
from typing import NamedTuple

from .arena import Loan
from .images import Inputs
from .models import Batch
from .pictures import threads


class Ready(NamedTuple):
    """A batch whose inputs are as its function gets them."""

    inputs: Inputs
    batch: Batch
    lent: list[Loan]
    seconds: float
    """How long that took, from when another thread was asked to."""


class Ahead:
    """A batch that another thread makes ready, or this one if it has not begun by then."""

    def __init__(self, make: Callable[[], tuple[Inputs, Batch, list[Loan]]]) -> None:
        self._make = make
        self._ready: Ready | None = None
        self._future: concurrent.futures.Future[None] | None = None
        self._asked = 0.0

    def begin(self) -> None:
        """Have another thread make it ready."""
        self._asked = time.monotonic()
        self._future = threads().submit(self._run)

    def take(self) -> Ready:
        """What is ready. Nothing else refers to it: the function's inputs may be lent."""
        if self._future is None or self._future.cancel():
            self._asked = 0.0
            self._run()
        else:
            self._future.result()
        ready, self._ready = self._ready, None
        assert ready is not None
        return ready

    def _run(self) -> None:
        began = self._asked or time.monotonic()
        inputs, batch, lent = self._make()
        self._ready = Ready(inputs, batch, lent, time.monotonic() - began)

"""Frames of a stream and their results, for both threads and asyncio."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from concurrent.futures import Future
from typing import Any, Literal

from .errors import Superseded
from .request import Answer

Keep = Literal["latest", "all"] | int

WAITING = 64  # results that wait to be taken, at most
NO_MORE = "the stream takes no more frames: finish or close was called"


class Result:
    """The result of a frame.

    Attributes:
        seq: the number of the frame
        frame: as it was pushed
        age: seconds since it was captured, when the answer came; changes of the clock since it was
            pushed do not count
        skipped: frames of the stream superseded since the previous executed one
    """

    def __init__(
        self, seq: int, frame: Any, since: float, future: Future[Answer] | asyncio.Future[Answer]
    ) -> None:
        self.seq, self.frame = seq, frame
        self.age = time.monotonic() - since
        self._future = future
        skipped = None if future.exception() else future.result().metadata.get("skipped")
        self.skipped = skipped if isinstance(skipped, int) else 0

    @property
    def answer(self) -> Answer:
        """The outputs; raises the error if there is one."""
        return self._future.result()


class Frames:
    """The frames of a stream: how many are open, and the results not taken yet.

    Nothing here waits or locks. A subclass uses it from one thread at a time, and wakes waiters
    after each change.

    Attributes:
        superseded: how many frames the server replaced by newer ones
        dropped: how many results were not taken before newer ones came
    """

    def __init__(self, model: str, name: str, keep: Keep, timeout: float | None) -> None:
        if keep not in ("latest", "all") and not (isinstance(keep, int) and not isinstance(keep, bool) and keep > 0):
            raise ValueError(f'keep is {keep!r}, expected "latest", "all" or a positive number')
        self._model, self._name, self._keep, self._timeout = model, name, keep, timeout
        self._most = {"latest": 1, "all": 0}.get(str(keep)) if isinstance(keep, str) else keep
        self._results: deque[Result] = deque()
        self._open = 0  # frames without an answer
        self._pushing = True
        self._seq = 0
        self.superseded = 0
        self.dropped = 0

    @property
    def ended(self) -> bool:
        """Whether no more frames can be pushed, and all are answered."""
        return not self._pushing and not self._open

    @property
    def _full(self) -> bool:
        """Whether a frame has to wait until a result is taken."""
        return self._pushing and not self._most and len(self._results) >= WAITING

    @property
    def _settled(self) -> bool:
        """Whether taking a result need not wait: there is one, or none is to come."""
        return bool(self._results) or self.ended

    def _begin(self, seq: int | None, captured_at: float | None) -> tuple[int, float, float]:
        """Open a frame. Returns its number and when it was captured, on the clocks of time.time()
        and time.monotonic()."""
        if not self._pushing:
            raise ValueError(NO_MORE)
        seq = self._seq if seq is None else seq
        self._seq = seq + 1
        self._open += 1
        now = time.time()
        at = now if captured_at is None else captured_at
        return seq, at, time.monotonic() - max(0.0, now - at)

    def _request(self, frame: Any, seq: int, at: float) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The inputs and the keywords of a frame's request."""
        inputs = frame if isinstance(frame, tuple) else (frame,)
        metadata = {"stream": self._name, "seq": seq, "captured_at": round(at * 1000), "keep": self._keep}
        return inputs, {"timeout": self._timeout, **metadata}

    def _end(self, seq: int, frame: Any, since: float, future: Future[Answer] | asyncio.Future[Answer]) -> None:
        """Note the answer of a frame."""
        self._open -= 1
        if isinstance(future.exception(), Superseded):
            self.superseded += 1
            return
        self._results.append(Result(seq, frame, since, future))
        while self._most and len(self._results) > self._most:
            self._results.popleft()
            self.dropped += 1

    def _next(self) -> Result | None:
        return self._results.popleft() if self._results else None

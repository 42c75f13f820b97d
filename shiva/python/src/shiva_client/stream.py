"""Frames of a camera, of which the newest counts."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Literal

from .client import Client
from .errors import Superseded
from .request import Answer

Keep = Literal["latest", "all"] | int

WAITING = 64  # results that wait to be taken, at most
NO_MORE = "the stream takes no more frames: finish or close was called"


class Result:
    """What became of a frame.

    Attributes:
        seq: the number of the frame
        frame: as it was pushed
        age: seconds since it was captured, when the answer came
        skipped: frames of the stream that were superseded since the one that was executed before
    """

    def __init__(self, seq: int, frame: Any, captured_at: float, future: Future[Answer]) -> None:
        self.seq, self.frame = seq, frame
        self.age = time.time() - captured_at
        self._future = future
        skipped = None if future.exception() else future.result().metadata.get("skipped")
        self.skipped = skipped if isinstance(skipped, int) else 0

    @property
    def answer(self) -> Answer:
        """The outputs; it raises the error if there is one."""
        return self._future.result()


class Stream:
    """A stream of frames for one model. One thread pushes frames, and another one, or the same, takes the results.

        stream = client.stream("detector", "camera 3")
        for result in stream.watch(frames):
            show(result.frame, result.answer["boxes"], result.age)

    Frames that are superseded have no result: ``superseded`` counts them. Results that nobody takes are dropped for
    newer ones, as many of which are there as keep says; ``dropped`` counts these. With keep="all" none is dropped:
    ``push`` waits while 64 of them are there, so another thread has to take them.
    """

    def __init__(
        self, client: Client, model: str, name: str, *, keep: Keep = "latest", timeout: float | None = None
    ) -> None:
        """Push frames to a model over a client that is the stream's own.

        Args:
            client: closed with the stream
            model: as for ``Client.infer``
            name: of the stream
            keep: which frames the server keeps waiting: "latest", a number of newest ones, or "all"
            timeout: of each frame, in seconds
        """
        if keep not in ("latest", "all") and not (isinstance(keep, int) and not isinstance(keep, bool) and keep > 0):
            raise ValueError(f'keep is {keep!r}, expected "latest", "all" or a positive number')
        self._client, self._model, self._name, self._keep, self._timeout = client, model, name, keep, timeout
        self._most = {"latest": 1, "all": 0}.get(str(keep)) if isinstance(keep, str) else keep
        self._changed = threading.Condition()
        self._results: deque[Result] = deque()
        self._open = 0  # frames without an answer
        self._pushing = True
        self._seq = 0
        self.superseded = 0
        self.dropped = 0

    def push(self, frame: Any, *, seq: int | None = None, captured_at: float | None = None) -> int:
        """Send a frame, and return its number.

        Args:
            frame: an array, a tuple of them in the order of the model's inputs, or a mapping from their names; it may
                be used again when push returns, but is what the result refers to
            seq: its number; None: one more than that of the frame before
            captured_at: when it was taken, as time.time() has it; None: now
        """
        with self._changed:
            if not self._pushing:
                raise ValueError(NO_MORE)
            seq = self._seq if seq is None else seq
            self._seq = seq + 1
            while self._pushing and not self._most and len(self._results) >= WAITING:
                self._changed.wait()
            if not self._pushing:
                raise ValueError(NO_MORE)
            self._open += 1
        at = time.time() if captured_at is None else captured_at
        inputs = frame if isinstance(frame, tuple) else (frame,)
        try:
            future = self._client.submit(
                self._model, *inputs, timeout=self._timeout,
                stream=self._name, seq=seq, captured_at=round(at * 1000), keep=self._keep,
            )  # fmt: skip
        except BaseException:
            with self._changed:
                self._open -= 1
                self._changed.notify_all()
            raise
        future.add_done_callback(lambda done: self._answered(seq, frame, at, done))
        return seq

    def _answered(self, seq: int, frame: Any, at: float, future: Future[Answer]) -> None:
        with self._changed:
            self._open -= 1
            self._changed.notify_all()
            if isinstance(future.exception(), Superseded):
                self.superseded += 1
                return
            self._results.append(Result(seq, frame, at, future))
            while self._most and len(self._results) > self._most:
                self._results.popleft()
                self.dropped += 1

    def take(self, timeout: float | None = None) -> Result | None:
        """The next result, in the order of the stream.

        None if there is none within timeout seconds, or none to come: the stream was finished or closed, and all frames
        are answered. 0 does not wait, for a loop that both pushes and takes.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._results or self.ended, timeout)
            if not self._results:
                return None
            self._changed.notify_all()
            return self._results.popleft()

    @property
    def ended(self) -> bool:
        """Whether no frame can be pushed any more, and all are answered."""
        return not self._pushing and not self._open

    def __iter__(self) -> Iterator[Result]:
        """The results, until there are none to come."""
        while result := self.take():
            yield result

    def watch(self, frames: Iterable[Any]) -> Iterator[Result]:
        """Push the frames of an iterable from a thread of its own, and yield the results.

        It raises what the iterable raises, after the last result. Leaving the loop finishes the stream: the thread ends
        with the next frame.
        """
        failure: list[BaseException] = []

        def push() -> None:
            try:
                for frame in frames:
                    self.push(frame)
            except BaseException as error:
                if self._pushing:  # it is not push that says so
                    failure.append(error)
            finally:
                self.finish()

        threading.Thread(target=push, name=f"shiva stream {self._name}", daemon=True).start()
        try:
            yield from self
        finally:
            self.finish()
        if failure:
            raise failure[0]

    def finish(self) -> None:
        """Push no more. Iterating ends with the answer of the last frame."""
        with self._changed:
            self._pushing = False
            self._changed.notify_all()

    def close(self) -> None:
        """End the stream's connection. Frames in flight fail."""
        self.finish()
        self._client.close()

    def __enter__(self) -> Stream:
        """The stream itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

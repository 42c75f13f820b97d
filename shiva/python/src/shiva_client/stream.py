"""Streams of camera frames, of which the newest counts."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from .client import Client
from .frames import Frames, Keep, Result
from .request import Answer


class Stream(Frames):
    """A stream of frames to one model. One thread pushes frames; it or another takes the results.

        stream = client.stream("detector", "camera 3")
        for result in stream.watch(frames):
            show(result.frame, result.answer["boxes"], result.age)

    Superseded frames have no result: ``superseded`` counts them. Results that are not taken are
    dropped for newer ones, so that at most ``keep`` wait; ``dropped`` counts these. With keep="all"
    no result is dropped: ``push`` waits while 64 wait, so another thread has to take them.
    """

    def __init__(
        self, client: Client, model: str, name: str, *, keep: Keep = "latest", timeout: float | None = None
    ) -> None:
        """Push frames to a model with a client that belongs to the stream.

        Args:
            client: closed with the stream
            model: as for ``Client.infer``
            name: of the stream
            keep: which waiting frames the server keeps: the "latest", a number of newest ones, or
                "all"
            timeout: of each frame, in seconds
        """
        super().__init__(model, name, keep, timeout)
        self._client = client
        self._changed = threading.Condition()

    def push(self, frame: Any, *, seq: int | None = None, captured_at: float | None = None) -> int:
        """Send a frame, and return its number.

        Args:
            frame: an array, a tuple of them in the order of the model's inputs, or a mapping from
                their names. It may be used again when push returns, but the result refers to it.
            seq: its number; None: one more than the previous frame's
            captured_at: when it was captured, on the clock of time.time(); None: now
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._full)
            seq, at, since = self._begin(seq, captured_at)
        try:
            inputs, metadata = self._request(frame, seq, at)
            future = self._client.submit(self._model, *inputs, **metadata)
        except BaseException:
            with self._changed:
                self._open -= 1
                self._changed.notify_all()
            raise
        future.add_done_callback(lambda done: self._answered(seq, frame, since, done))
        return seq

    def _answered(self, seq: int, frame: Any, since: float, future: Future[Answer]) -> None:
        with self._changed:
            self._end(seq, frame, since, future)
            self._changed.notify_all()

    def take(self, timeout: float | None = None) -> Result | None:
        """The next result, in the order of the stream.

        None if there is no result within ``timeout`` seconds, or none to come: the stream was
        finished or closed, and all frames are answered. 0 does not wait, for a loop that both
        pushes and takes.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._settled, timeout and min(timeout, threading.TIMEOUT_MAX))
            if result := self._next():
                self._changed.notify_all()
            return result

    def __iter__(self) -> Iterator[Result]:
        """The results, until none are left to come."""
        while result := self.take():
            yield result

    def watch(self, frames: Iterable[Any]) -> Iterator[Result]:
        """Push the frames of an iterable from a thread of its own, and yield the results.

        An exception of the iterable is raised after the last result. Leaving the loop finishes the
        stream: the thread ends with the next frame.
        """
        failure: list[BaseException] = []

        def push() -> None:
            try:
                for frame in frames:
                    self.push(frame)
            except BaseException as error:
                if self._pushing:  # not raised by push after finish
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
        """Push no more frames. Iteration ends with the answer to the last frame."""
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

"""Sends the pictures of a video to a model, without holding up the video."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ..client import Client
from ..frames import Keep, Result
from ..stream import Stream
from ..wire import Array


class Picture:
    """A picture of the video.

    Attributes:
        seq: its number in the stream
        pixels: [height, width, 3] of uint8; None once they are sent
        segment: the event of its segment
        pts, duration: those of its buffer
        taken: when it arrived, on the clock of time.time()
        session: the one that it is shown to
        draws: whether its buffer may be drawn on
        settled: whether it is answered, or will not be; then overlay is what to draw on it
    """

    def __init__(self, seq: int, pixels: Array, segment: Any, pts: int, duration: int) -> None:
        self.seq, self.taken = seq, time.time()
        self.pixels: Array | None = pixels
        self.height, self.width = pixels.shape[:2]
        self.segment, self.pts, self.duration = segment, pts, duration
        self.session: Any = None
        self.draws = self.settled = False
        self.overlay: Any = None

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        """The pixels, for the stream that sends them."""
        assert self.pixels is not None, "the picture is sent"
        return self.pixels


class Session:
    """A stream, a thread that pushes pictures to it, and a thread that takes its results.

    Attributes:
        closed: whether results are no longer wanted
    """

    def __init__(
        self,
        client: Client,
        stream: Stream,
        keep: Keep,
        on_outcome: Callable[[Session, Picture, Result | Exception], None],
        on_end: Callable[[Session], None],
    ) -> None:
        """Begin with no picture.

        Args:
            client: closed with the session
            stream: of the client
            keep: that of the stream
            on_outcome: called for each picture that was answered or failed, in order
            on_end: called after finish, once ``on_outcome`` was called for all pictures

        Both are called from threads of the session. One such call may still happen after close, by
        a thread that was about to make it.
        """
        self._client, self._stream, self._on_outcome, self._on_end = client, stream, on_outcome, on_end
        # A picture waits here while the previous one is being sent, for as long as the network and
        # the server take.
        most = None if keep == "all" else 1 if keep == "latest" else int(keep)
        self._waiting: deque[Picture] = deque(maxlen=most)
        self._changed = threading.Condition()
        self._finished = False
        self.closed = False
        for work in (self._push, self._take):
            threading.Thread(target=work, name="shivainfer", daemon=True).start()

    def show(self, picture: Picture) -> None:
        """Queue a picture for sending. If full, it replaces the oldest, unless all are kept."""
        with self._changed:
            self._waiting.append(picture)
            self._changed.notify_all()

    @property
    def idle(self) -> bool:
        """Whether no picture waits to be sent."""
        return not self._waiting

    def forget(self) -> list[Picture]:
        """Return the waiting pictures unsent, as the server is unreachable. ``on_outcome`` is not
        called."""
        with self._changed:
            forgotten = list(self._waiting)
            self._waiting.clear()
            return forgotten

    def finish(self) -> None:
        """Show no more pictures. Those shown are still answered."""
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def close(self) -> None:
        """Show no more pictures, and drop all answers."""
        with self._changed:
            self.closed = self._finished = True
            self._waiting.clear()
            self._changed.notify_all()
        self._hang_up()

    def _next(self) -> Picture | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._finished)
            return self._waiting.popleft() if self._waiting else None

    def _push(self) -> None:
        try:
            while picture := self._next():
                try:
                    self._stream.push(picture, seq=picture.seq, captured_at=picture.taken)
                except Exception as error:
                    self._tell(picture, error)
                picture.pixels = None
        finally:
            self._stream.finish()

    def _take(self) -> None:
        for result in self._stream:
            try:
                _ = result.answer
                self._tell(result.frame, result)
            except Exception as error:
                self._tell(result.frame, error)
        if not self.closed:
            self._on_end(self)
            self._hang_up()

    def _hang_up(self) -> None:
        self._stream.close()
        self._client.close()

    def _tell(self, picture: Picture, outcome: Result | Exception) -> None:
        if not self.closed:
            self._on_outcome(self, picture, outcome)

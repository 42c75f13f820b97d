"""Frames of a camera, for asyncio."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from types import TracebackType
from typing import Any

from .aio import AsyncClient
from .frames import Frames, Keep, Result
from .request import Answer


class AsyncStream(Frames):
    """A stream of frames to one model, in one event loop.

    One task pushes frames; it or another takes the results.

        async with client.stream("detector", "camera 3") as stream:
            async for result in stream.watch(frames):
                show(result.frame, result.answer["boxes"], result.age)

    In all else it works like ``Stream``. Cancelling a waiting ``push`` sends nothing, and
    cancelling ``take`` loses no result.
    """

    def __init__(
        self, client: AsyncClient, model: str, name: str, *, keep: Keep = "latest", timeout: float | None = None
    ) -> None:
        """Push frames to a model with a client that belongs to the stream. See ``Stream``."""
        super().__init__(model, name, keep, timeout)
        self._client = client
        self._changed: asyncio.Future[None] | None = None  # all waiters share it

    async def push(self, frame: Any, *, seq: int | None = None, captured_at: float | None = None) -> int:
        """Send a frame, and return its number. See ``Stream.push``."""
        # Nothing below waits while the connection takes everything: without this, a loop that only
        # pushes would starve the tasks that take.
        await asyncio.sleep(0)
        while self._full:
            await self._change(None)
        seq, at, since = self._begin(seq, captured_at)
        try:
            inputs, metadata = self._request(frame, seq, at)
            future = await self._client.submit(self._model, *inputs, **metadata)
        except BaseException:
            self._open -= 1
            self._notify()
            raise
        future.add_done_callback(lambda done: self._answered(seq, frame, since, done))
        return seq

    def _answered(self, seq: int, frame: Any, since: float, future: asyncio.Future[Answer]) -> None:
        self._end(seq, frame, since, future)
        self._notify()

    def _notify(self) -> None:
        """Wake the waiters for a change."""
        if changed := self._changed:
            self._changed = None
            changed.set_result(None)

    async def _change(self, timeout: float | None) -> None:
        """Wait for a change."""
        self._changed = self._changed or asyncio.get_running_loop().create_future()
        # wait_for would cancel the future, which other tasks await, too.
        await asyncio.wait([self._changed], timeout=timeout)

    async def take(self, timeout: float | None = None) -> Result | None:
        """The next result, in the order of the stream, or None. See ``Stream.take``."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        await asyncio.sleep(0)  # answers are read even if timeout is 0
        while not self._settled and (left := until - time.monotonic()) > 0:
            await self._change(None if left == math.inf else left)
        if result := self._next():
            self._notify()
        return result

    async def __aiter__(self) -> AsyncIterator[Result]:
        """The results, until none are left to come."""
        while result := await self.take():
            yield result

    async def watch(self, frames: Iterable[Any] | AsyncIterable[Any]) -> AsyncGenerator[Result, None]:
        """Push the frames of an iterable from a task of its own, and yield the results.

        An iterable that is not asynchronous runs in a thread, since cameras block. An exception of
        the iterable is raised after the last result. Leaving the loop finishes the stream and
        cancels the task.
        """
        failure: list[Exception] = []

        async def push() -> None:
            try:
                if isinstance(frames, AsyncIterable):
                    async for frame in frames:
                        await self.push(frame)
                    return
                iterator, end = iter(frames), object()
                while (frame := await asyncio.to_thread(next, iterator, end)) is not end:
                    await self.push(frame)
            except Exception as error:
                if self._pushing:  # not raised by push after finish
                    failure.append(error)
            finally:
                self.finish()

        task = asyncio.create_task(push(), name=f"shiva stream {self._name}")
        try:
            async for result in self:
                yield result
        finally:
            self.finish()
            task.cancel()
            await asyncio.wait([task])
        if failure:
            raise failure[0]

    def finish(self) -> None:
        """Push no more frames. Iteration ends with the answer to the last frame."""
        self._pushing = False
        self._notify()

    async def close(self) -> None:
        """End the stream's connection. Frames in flight fail."""
        self.finish()
        await self._client.close()

    async def __aenter__(self) -> AsyncStream:
        """The stream itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

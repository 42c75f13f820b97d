"""The threads that call a model's function: one that also reads, several, or an event loop."""

from __future__ import annotations

import asyncio
import logging
import queue
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from .ahead import Ahead
from .link import Job, Link
from .poller import READ, WRITE, Poller

log = logging.getLogger("shiva_container")

QUICK_SECONDS = 1e-3
"""A function that takes less is quick: its thread reads the next batch itself.

While a slower one computes, another thread has to read.
"""
QUICK_CALLS, SLOW_CALLS = 3, 2
"""This many calls in a row make a function quick, or slow: a single one may be an accident."""
LATE_SECONDS = 0.02
"""How long a quick function may block its thread before another thread reads."""

Sockets = Sequence[tuple[Link, int]]
"""Links whose servers may send batches, and the descriptors of their connections."""


class Calls(Protocol):
    """The calls that a worker makes: see runner.py."""

    def spawn(self, target: Callable[[], None]) -> None:
        """Start a thread."""

    def warm(self) -> bool:
        """Call the warm-up hook and report the result. Returns whether the model can serve."""

    async def warm_async(self) -> bool:
        """The same in an event loop."""

    def ahead(self, job: Job) -> Ahead | None:
        """Begin to make a batch ready; None if there is nothing to do."""

    def compute(self, job: Job, now: float, *, ahead: Ahead | None = None) -> None:
        """Compute a batch, which may have been made ready, and answer it."""

    async def compute_async(self, job: Job) -> None:
        """The same in an event loop."""

    def failed(self, error: BaseException) -> None:
        """Report that no thread is left to compute."""


class Worker(Protocol):
    """The threads that compute batches. All methods may be called from any thread."""

    def start(self) -> None:
        """Begin, with the warm-up."""

    def submit(self, job: Job) -> None:
        """Queue a batch, after the warm-up."""

    def stop(self) -> None:
        """End after the batches in computation."""

    def offer(self, sockets: Sockets) -> None:
        """Let the worker read these sockets itself, and no others. From the I/O thread."""

    def watch(self, now: float) -> float:
        """Take the sockets from a worker that does not read them. Returns when to look again.

        From the I/O thread.
        """


class Solo:
    """One thread, in which batches are computed one after the other.

    While the function is quick the thread also reads the sockets (it leads), so that a batch wakes
    one thread and no other. The I/O thread then only sends heartbeats, and checks from time to time
    whether a call takes long after all: then it takes the sockets back. With a slow function the
    I/O thread reads all the time, so that the next batch is here when one is done, and its pictures
    are decoded.
    """

    def __init__(self, calls: Calls, attend: Callable[[], None]) -> None:
        self._calls = calls
        self._attend = attend
        self._jobs: deque[tuple[Job, Ahead | None]] = deque()
        self._poller: Poller[Link] = Poller()
        self._stopped = False
        self._waiting = False
        self._offered: Sockets = ()
        self._led: Sockets = ()
        self._followed: Sockets | None = None
        self._quick = self._slow = 0
        # Shared with the I/O thread, which watches.
        self._began = 0.0
        self._count = self._seen = 0
        self._watched = False

    def start(self) -> None:
        self._calls.spawn(self._run)

    def submit(self, job: Job) -> None:
        # One batch at most is made ready, however many a server sends: that bounds memory.
        soon = self._began and not self._jobs
        self._jobs.append((job, self._calls.ahead(job) if soon else None))
        if self._waiting:
            self._poller.wake()

    def stop(self) -> None:
        self._stopped = True
        self._poller.wake()

    def offer(self, sockets: Sockets) -> None:
        if sockets != self._offered:
            self._offered = sockets
            self._poller.wake()

    def watch(self, now: float) -> float:
        if not self._watched:
            return float("inf")
        if self._began and now - self._began >= LATE_SECONDS:
            self._watched = False
            self._quick = 0
            self._lead(())
            return float("inf")
        if not self._began and self._count == self._seen:
            self._watched = False
            if not self._began:
                return float("inf")
            self._watched = True  # a call began between the two, and relies on us
        self._seen = self._count
        return now + LATE_SECONDS

    def _lead(self, sockets: Sockets) -> None:
        """Read these sockets instead of the I/O thread."""
        for link, _ in self._led:
            link.led = False
        self._led = sockets
        for link, _ in sockets:
            link.led = True

    def _run(self) -> None:
        try:
            if self._calls.warm():
                while self._next():
                    pass
        finally:
            self._lead(())
            self._poller.close()

    def _next(self) -> bool:
        """Compute a batch, or wait for one. Returns whether to go on.

        The loop calls this function for each batch: an idle thread then holds no frames.
        """
        if not self._jobs:
            self._wait()
        if self._stopped or not self._jobs:
            return not self._stopped
        for link, _ in self._led:
            if link.blocked:
                link.readable()
        job, ahead = self._jobs.popleft()
        if job[2].ended:
            return True
        self._began = began = time.monotonic()
        self._count += 1
        if self._led and not self._watched:
            self._watched = True
            self._attend()
        self._calls.compute(job, began, ahead=ahead)
        took = time.monotonic() - began
        self._began = 0.0
        if took < QUICK_SECONDS:
            self._quick, self._slow = min(self._quick + 1, QUICK_CALLS), 0
        else:
            self._slow = min(self._slow + 1, SLOW_CALLS)
            if self._slow == SLOW_CALLS or not self._led:
                self._quick = 0
        return True

    def _wait(self) -> None:
        wanted = self._offered if self._quick == QUICK_CALLS else ()
        if wanted is not self._led:
            self._lead(wanted)
            self._attend()
        blocked = False
        for link, _ in wanted:
            blocked = blocked or link.blocked
        if blocked or self._followed is not wanted:
            self._poller.follow({n: (link, READ | WRITE * link.blocked) for link, n in wanted})
            self._followed = None if blocked else wanted
        self._waiting = True
        ready = [] if self._jobs or self._stopped else self._poller.wait(None)
        self._waiting = False
        for link in ready:
            if not link.readable():
                self._attend()


class Threads:
    """Several threads, each of which computes the next batch in the queue."""

    def __init__(self, calls: Calls, count: int) -> None:
        self._calls = calls
        self._count = count
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()

    def start(self) -> None:
        self._calls.spawn(self._first)

    def submit(self, job: Job) -> None:
        self._jobs.put(job)

    def stop(self) -> None:
        for _ in range(self._count):
            self._jobs.put(None)

    def offer(self, sockets: Sockets) -> None:
        """Ignore them; the I/O thread reads: several threads exist because calls take long."""

    def watch(self, now: float) -> float:
        return float("inf")

    def _first(self) -> None:
        if not self._calls.warm():
            return
        for _ in range(self._count - 1):
            self._calls.spawn(self._work)
        self._work()

    def _work(self) -> None:
        while self._one(self._jobs.get()):  # a separate call: an idle thread holds no frames
            pass

    def _one(self, job: Job | None) -> bool:
        if job is None:
            return False
        _, _, session = job
        if not session.ended:
            self._calls.compute(job, time.monotonic())
        return True


class Tasks:
    """One thread with an event loop, and a task for each batch in it."""

    def __init__(self, calls: Calls, count: int) -> None:
        self._calls = calls
        self._count = count
        self._stopped = False
        self.loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        self._calls.spawn(self._run)

    def submit(self, job: Job | None) -> None:
        if self.loop is None:
            return
        try:
            self.loop.call_soon_threadsafe(self._jobs.put_nowait, job)
        except RuntimeError:  # the loop has ended, and with it every caller of the answer
            log.debug("an event loop has ended")

    def stop(self) -> None:
        self._stopped = True
        self.submit(None)

    def offer(self, sockets: Sockets) -> None:
        """Ignore them; the I/O thread reads: other tasks may block the loop for any time."""

    def watch(self, now: float) -> float:
        return float("inf")

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as e:  # SystemExit in a task that the model started
            self._calls.failed(e)

    async def _serve(self) -> None:
        self._jobs: asyncio.Queue[Job | None] = asyncio.Queue()
        self.loop = loop = asyncio.get_running_loop()
        if self._stopped or not await self._calls.warm_async():  # stopped before there was a loop
            return
        free = asyncio.Semaphore(self._count)
        running: set[asyncio.Task[None]] = set()
        while (job := await self._jobs.get()) is not None:
            await free.acquire()
            _, _, session = job
            if session.ended:
                free.release()
                continue
            task = loop.create_task(self._calls.compute_async(job))
            del job, session
            running.add(task)
            task.add_done_callback(running.discard)
            task.add_done_callback(lambda _: free.release())
        if running:
            await asyncio.wait(running)


"""Runs one model (warm-up, batches, health, feedback), apart from the I/O thread.

A worker (workers.py) computes the batches in threads of its own, which turn frames into arrays and
arrays into frames.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import queue
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from . import wire
from .ahead import Ahead
from .arbiter import Arbiter, Joint
from .arena import Arena, Loan
from .batches import Batches, read_feedback
from .forks import OneProcess
from .images import Inputs
from .link import Job, Link
from .models import Batch, Model, contained, error_text
from .session import EXCUSE_SECONDS, Lesson
from .tensors import Buffer
from .traces import following
from .union import Answer, Union
from .workers import Sockets, Solo, Tasks, Threads, Worker

log = logging.getLogger("shiva_container")

MAX_LESSONS = 64
"""How much feedback may wait for its hook; further feedback is dropped."""


class Runner:
    """Runs one model.

    ``ready`` is called from a compute thread, once with None, or with the error of the warm-up; and
    with the error that ended the event loop of an async function, after which no batch would be
    answered. ``attend`` tells the I/O thread that there is something to do for it. ``begin`` is
    called with a link before its first call in a while.
    """

    def __init__(
        self,
        model: Model[..., Any],
        ready: Callable[[BaseException | None], None],
        attend: Callable[[], None],
        begin: Callable[[Link], None],
    ) -> None:
        self.model = model
        self._ready = ready
        self._begin = begin
        self._batches = Batches(model)
        self._threads: list[threading.Thread] = []
        self._traced = 0.0
        self._calls: dict[int, float] = {}
        self._stop = threading.Event()
        self._lessons: queue.Queue[Lesson | None] = queue.Queue(MAX_LESSONS)
        self._dropped = False
        self._looks_ahead = not model.is_async and model.concurrency == 1
        """Whether the next batch's pictures are decoded while the function computes."""
        self._worker: Worker
        if model.is_async:
            self._worker = Tasks(self, model.concurrency)
        elif model.concurrency == 1:
            self._worker = Solo(self, attend)
        else:
            self._worker = Threads(self, model.concurrency)
        self.arbiter = Arbiter(model, self._worker.submit, attend)
        """Takes batches from any thread, after ``ready``."""

    def start(self) -> None:
        """Start the first thread, which warms up."""
        self._worker.start()

    def offer(self, sockets: Sockets) -> None:
        """See Worker."""
        self._worker.offer(sockets)

    def watch(self, now: float) -> float:
        """See Worker."""
        return self._worker.watch(now)

    def stop(self, timeout: float) -> None:
        """Let each thread end after its current call. After ``timeout`` abandon the others."""
        self._stop.set()
        with contextlib.suppress(queue.Full):  # then the thread is awake, and checks _stop
            self._lessons.put_nowait(None)
        self._worker.stop()
        until = time.monotonic() + timeout
        for thread in list(self._threads):
            thread.join(max(0.0, until - time.monotonic()))

    def longest(self, now: float) -> float:
        """For how long the oldest batch has been in the function; 0 if there is none."""
        return now - min(self._calls.copy().values(), default=now)

    # Called by the worker, in its threads.

    def spawn(self, target: Callable[[], None]) -> None:
        """Start a thread that ``stop`` waits for."""
        thread = threading.Thread(target=target, name=f"shiva-{self.model.name}-{len(self._threads)}", daemon=True)
        thread.start()
        self._threads.append(thread)  # then: ``stop`` cannot wait for one that has not been started

    def warm(self) -> bool:
        """Call the warm-up hook; whether it succeeded."""
        try:
            if self.model.warmup_hook is not None:
                with OneProcess():
                    value = self.model.warmup_hook()
                    if inspect.isawaitable(value):
                        _run(value)
        except BaseException as e:
            self._ready(e)
            return False
        self._ready(None)
        return True

    async def warm_async(self) -> bool:
        """The same in the model's event loop."""
        try:
            if self.model.warmup_hook is not None:
                with OneProcess():
                    value = self.model.warmup_hook()
                    if inspect.isawaitable(value):
                        await value
        except BaseException as e:
            self._ready(e)
            return False
        self._ready(None)
        return True

    def ahead(self, job: Job) -> Ahead | None:
        """Begin to make a batch ready for ``compute``; None if it has no pictures to decode."""
        if not self.model.images or job[2].joint is not None:
            return None
        ahead = Ahead(lambda: self._make(job))
        ahead.begin()
        return ahead

    def _make(self, job: Job) -> tuple[Inputs, Batch, list[Loan]]:
        delivery, _, session = job
        given, batch, lent = self._batches.read(delivery, session.arena)
        return self.model.see(given, batch), batch, lent

    def compute(self, job: Job, now: float, ends: Joint | None = None, ahead: Ahead | None = None) -> None:
        """Call the function and answer the batch, which is the last one of ``ends`` if given.

        ``ahead`` has its inputs, if they were made ready before.

        The next execution is granted before this one is answered: a server hands answers to its
        clients before it reads on, so it would read a grant behind them late.
        """
        delivery, link, session = job
        if session.joint is not None:
            self._compute_joint(session.joint, now)
            return
        self._calls[id(delivery)] = now
        if now - link.called >= EXCUSE_SECONDS:
            self._excuse(link, now)
        batch_id, arena = delivery.batch_id, session.arena
        lent: list[Loan] = []
        try:
            if self.model.images:
                inputs, batch, lent, seconds = (ahead or Ahead(lambda: self._make(job))).take()
            else:
                arrays, batch, lent = self._batches.read(delivery, arena)
                inputs, seconds = (arrays, {}), 0.0
                del arrays
            if batch.traces:
                with following(self.model, batch):
                    outputs = self.model.call(inputs, batch)
            else:
                outputs = self.model.call(inputs, batch)
            frames = self._batches.write(batch_id, outputs, batch, arena, lent)
            if seconds and self._looks_ahead:
                frames[2] = wire.prepared(frames[2], seconds)
            del inputs, outputs
        except BaseException as e:  # even SystemExit: the batch must be answered
            frames, lent = self._failure(batch_id, arena, e), []
        del self._calls[id(delivery)]
        if lent:
            self._batches.settle(lent)
        if ends is not None:
            self.arbiter.done(ends)
        link.answer(session, batch_id, frames)

    async def compute_async(self, job: Job, ends: Joint | None = None) -> None:
        """The same with an async function."""
        delivery, link, session = job
        if session.joint is not None:
            await self._compute_joint_async(session.joint)
            return
        self._calls[id(delivery)] = now = time.monotonic()
        if now - link.called >= EXCUSE_SECONDS:
            self._excuse(link, now)
        batch_id, arena = delivery.batch_id, session.arena
        lent: list[Loan] = []
        try:
            arrays, batch, lent = self._batches.read(delivery, arena)
            if batch.traces:
                with following(self.model, batch):
                    outputs = await self.model.run_async(arrays, batch)
            else:
                outputs = await self.model.run_async(arrays, batch)
            frames = self._batches.write(batch_id, outputs, batch, arena, lent)
            del arrays, outputs
        except BaseException as e:
            frames, lent = self._failure(batch_id, arena, e), []
        del self._calls[id(delivery)]
        if lent:
            self._batches.settle(lent)
        if ends is not None:
            self.arbiter.done(ends)
        link.answer(session, batch_id, frames)

    def _compute_joint(self, joint: Joint, now: float) -> None:
        """Compute batches of several servers in one call; each alone if that fails."""
        union, answers = Union(self._batches, joint), list[Answer]()
        if union.batch is not None:
            self._calls[id(joint)] = now
            for link in union.links:
                if now - link.called >= EXCUSE_SECONDS:
                    self._excuse(link, now)
            try:
                with following(self.model, union.batch) if union.batch.traces else contextlib.nullcontext():
                    outputs = self.model.run(union.arrays, union.batch)
                answers = union.divide(outputs)
            except BaseException as e:  # one of the batches may be to blame
                log.debug("model %s failed on the rows of several servers: %s", self.model, error_text(e))
            del self._calls[id(joint)]
        self._answer(joint, answers, union.unanswered)
        for job in union.unanswered:
            self.compute(job, now, joint if job is union.unanswered[-1] else None)

    async def _compute_joint_async(self, joint: Joint) -> None:
        """The same with an async function."""
        union, answers, now = Union(self._batches, joint), list[Answer](), time.monotonic()
        if union.batch is not None:
            self._calls[id(joint)] = now
            for link in union.links:
                if now - link.called >= EXCUSE_SECONDS:
                    self._excuse(link, now)
            try:
                with following(self.model, union.batch) if union.batch.traces else contextlib.nullcontext():
                    outputs = await self.model.run_async(union.arrays, union.batch)
                answers = union.divide(outputs)
            except BaseException as e:
                log.debug("model %s failed on the rows of several servers: %s", self.model, error_text(e))
            del self._calls[id(joint)]
        self._answer(joint, answers, union.unanswered)
        for job in union.unanswered:
            await self.compute_async(job, joint if job is union.unanswered[-1] else None)

    def _answer(self, joint: Joint, answers: list[Answer], unanswered: list[Job]) -> None:
        """Answer the batches that were computed together; the others are computed after that."""
        if not unanswered:
            self.arbiter.done(joint)
        for (delivery, link, session), frames in answers:
            link.answer(session, delivery.batch_id, frames)

    def _excuse(self, link: Link, now: float) -> None:
        """Note that the first call in a while begins, which may hold the interpreter's lock."""
        link.called = now
        self._begin(link)

    def failed(self, error: BaseException) -> None:
        """Report that the event loop has ended."""
        self._ready(error)

    def _failure(self, batch_id: bytes, arena: Arena | None, error: BaseException) -> list[Buffer]:
        if arena is not None:
            arena.put(batch_id)
        text = error_text(error)
        now = time.monotonic()
        trace = now - self._traced > 1.0  # a flood of poison must not become a flood of tracebacks
        if trace:
            self._traced = now
        log.error("model %s failed on a batch: %s", self.model, text, exc_info=error if trace else None)
        return wire.failure(batch_id, text)

    # Feedback and health.

    def watch_health(self, verdict: Callable[[str], None]) -> None:
        """Start to call the health hook. ``verdict`` gets each change: "" or the fault."""
        if self.model.health_hook is not None:
            self.spawn(lambda: self._watch(verdict))

    def teach(self, lesson: Lesson) -> None:
        """Queue feedback for its hook, or drop it if too much waits; never blocks."""
        if self.model.feedback_hook is None:
            return
        try:
            self._lessons.put_nowait(lesson)
        except queue.Full:
            if not self._dropped:
                self._dropped = True
                log.warning("model %s: feedback comes faster than its hook takes it; the rest is dropped", self.model)

    def learn(self) -> None:
        """Start to call the feedback hook."""
        if self.model.feedback_hook is not None:
            threading.Thread(target=self._learn, name=f"shiva-{self.model.name}-feedback", daemon=True).start()

    def _learn(self) -> None:
        """Call the hook until ``stop``, which does not wait for this thread."""
        while not self._stop.is_set():
            lesson = self._lessons.get()
            if lesson is None:
                return
            try:
                self._tell(lesson)
            except BaseException as e:  # even SystemExit, which must not end the thread
                log.error("model %s: feedback: %s", self.model, error_text(e), exc_info=e)
            del lesson

    def _tell(self, lesson: Lesson) -> None:
        assert self.model.feedback_hook is not None
        with OneProcess():
            value = self.model.feedback_hook(read_feedback(lesson))
        if inspect.isawaitable(value):
            self._await(value)

    def _watch(self, verdict: Callable[[str], None]) -> None:
        before = ""
        while not self._stop.wait(self.model.health_interval):
            try:
                now = "" if self._ask_health() is not False else "the health hook returned False"
            except BaseException as e:  # even SystemExit: this thread must continue
                now = f"the health hook raised {error_text(e)}"
            if now != before:
                verdict(now)
                before = now

    def _ask_health(self) -> object:
        assert self.model.health_hook is not None
        with OneProcess():
            value = self.model.health_hook()
        return self._await(value) if inspect.isawaitable(value) else value

    def _await(self, value: Awaitable[object]) -> object:
        """The result of an async hook: from the model's own event loop, if it has one."""
        loop = self._worker.loop if isinstance(self._worker, Tasks) else None
        return _run(value) if loop is None else asyncio.run_coroutine_threadsafe(contained(value), loop).result()


def _run(value: Awaitable[object]) -> object:
    return asyncio.run(contained(value))

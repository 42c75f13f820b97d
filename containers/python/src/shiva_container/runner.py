"""The compute side: batches of one model through its function, away from the thread that talks.

Each runner has ``concurrency`` threads (sync functions) or one thread with an event loop (async ones).
Frames become arrays, and arrays frames, here, so that the I/O thread stays free for heartbeats.
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
from dataclasses import dataclass
from typing import Any, Protocol

from . import wire
from .models import Batch, Feedback, Model, Request, contained, error_text
from .session import Delivery, Lesson
from .tensors import Array, Buffer, TensorError, decode, encode

log = logging.getLogger("shiva_container")


class Sender(Protocol):
    """Where an answer goes."""

    @property
    def gone(self) -> bool:
        """Whether nobody waits for the answer any more."""

    def answer(self, batch_id: bytes, frames: list[Buffer]) -> None:
        """Take the answer; called from a compute thread."""


@dataclass(frozen=True)
class Job:
    """A batch and whom to answer."""

    delivery: Delivery
    sender: Sender


MAX_LESSONS = 64
"""How much feedback may wait for its hook; more is dropped."""


class Runner:
    """Runs one model.

    ``ready`` is called from a compute thread, once with None, or with what went wrong; and with what ended the
    event loop of an async function, after which nobody would answer.
    """

    def __init__(self, model: Model[..., Any], ready: Callable[[BaseException | None], None]) -> None:
        self.model = model
        self._ready = ready
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._traced = 0.0
        self._health: threading.Thread | None = None
        self._stop = threading.Event()
        self._lessons: queue.Queue[Lesson | None] = queue.Queue(MAX_LESSONS)
        self._dropped = False

    def start(self) -> None:
        """Start the first thread, which warms up and then starts the others."""
        self._spawn(self._first_async if self.model.is_async else self._first)

    def submit(self, job: Job) -> None:
        """Queue a batch; any thread, after ``ready``."""
        self._put(job)

    def stop(self, timeout: float) -> None:
        """Let the threads end after what they are at; those that do not within ``timeout`` are left behind."""
        self._stop.set()
        with contextlib.suppress(queue.Full):  # then it is awake, and looks at _stop
            self._lessons.put_nowait(None)
        for _ in range(self.model.concurrency):
            self._put(None)
        until = time.monotonic() + timeout
        for thread in list(self._threads):
            thread.join(max(0.0, until - time.monotonic()))

    def watch_health(self, verdict: Callable[[str], None]) -> None:
        """Ask the health hook from now on; ``verdict`` gets "" for healthy, else what is wrong, at each change."""
        if self.model.health_hook is not None:
            self._spawn(lambda: self._watch(verdict))

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
        """Call the feedback hook from now on."""
        if self.model.feedback_hook is not None:
            threading.Thread(target=self._learn, name=f"shiva-{self.model.name}-feedback", daemon=True).start()

    def _learn(self) -> None:
        """Ends after ``stop``; nobody waits for that, as nobody does for feedback."""
        while not self._stop.is_set():
            lesson = self._lessons.get()
            if lesson is None:
                return
            try:
                self._tell(lesson)
            except BaseException as e:  # even SystemExit: nobody else pays for it
                log.error("model %s: feedback: %s", self.model, error_text(e), exc_info=e)
            del lesson

    def _tell(self, lesson: Lesson) -> None:
        assert self.model.feedback_hook is not None
        value = self.model.feedback_hook(_read_feedback(lesson))
        if inspect.isawaitable(value):
            if self._loop is None:
                _run(value)
            else:
                asyncio.run_coroutine_threadsafe(contained(value), self._loop).result()

    def _spawn(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=f"shiva-{self.model.name}-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    # Threads of a sync function.

    def _first(self) -> None:
        try:
            if self.model.warmup_hook is not None:
                value = self.model.warmup_hook()
                if inspect.isawaitable(value):
                    _run(value)
        except BaseException as e:
            self._ready(e)
            return
        self._ready(None)
        for _ in range(self.model.concurrency - 1):
            self._spawn(self._work)
        self._work()

    def _work(self) -> None:
        while self._one(self._jobs.get()):  # in a call of its own, so that an idle thread holds no frames
            pass

    def _one(self, job: Job | None) -> bool:
        if job is None:
            return False
        if job.sender.gone:
            return True
        try:
            arrays, batch = _open(self.model, job.delivery)
            frames = _close(self.model, job.delivery.batch_id, self.model.run(arrays, batch), batch)
        except BaseException as e:  # even SystemExit: the batch must be answered
            frames = self._failed(job.delivery.batch_id, e)
        job.sender.answer(job.delivery.batch_id, frames)
        return True

    # The thread of an async function and its event loop.

    def _put(self, job: Job | None) -> None:
        if self._loop is None:
            self._jobs.put(job)
            return
        try:
            self._loop.call_soon_threadsafe(self._tasks.put_nowait, job)
        except RuntimeError:  # the loop has ended, and with it everybody who could want the answer
            log.debug("model %s: its event loop has ended", self.model)

    def _first_async(self) -> None:
        try:
            asyncio.run(self._serve_async())
        except BaseException as e:  # SystemExit in a task that the model began
            self._ready(e)

    async def _serve_async(self) -> None:
        self._tasks: asyncio.Queue[Job | None] = asyncio.Queue()
        self._loop = loop = asyncio.get_running_loop()
        if self._stop.is_set():  # before there was a loop to be told so
            return
        try:
            if self.model.warmup_hook is not None:
                value = self.model.warmup_hook()
                if inspect.isawaitable(value):
                    await value
        except BaseException as e:
            self._ready(e)
            return
        self._ready(None)
        free = asyncio.Semaphore(self.model.concurrency)
        running: set[asyncio.Task[None]] = set()
        while (job := await self._tasks.get()) is not None:
            await free.acquire()
            task = loop.create_task(self._one_async(job))
            del job
            running.add(task)
            task.add_done_callback(running.discard)
            task.add_done_callback(lambda _: free.release())
        if running:
            await asyncio.wait(running)

    async def _one_async(self, job: Job) -> None:
        if job.sender.gone:
            return
        try:
            arrays, batch = _open(self.model, job.delivery)
            outputs = await self.model.run_async(arrays, batch)
            frames = _close(self.model, job.delivery.batch_id, outputs, batch)
        except BaseException as e:
            frames = self._failed(job.delivery.batch_id, e)
        job.sender.answer(job.delivery.batch_id, frames)

    # Health and errors.

    def _watch(self, verdict: Callable[[str], None]) -> None:
        before = ""
        while not self._stop.wait(self.model.health_interval):
            try:
                now = "" if self._ask_health() is not False else "the health hook returned False"
            except BaseException as e:  # even SystemExit: this thread must go on asking
                now = f"the health hook raised {error_text(e)}"
            if now != before:
                verdict(now)
                before = now

    def _ask_health(self) -> object:
        assert self.model.health_hook is not None
        value = self.model.health_hook()
        if inspect.isawaitable(value):
            if self._loop is None:
                return _run(value)
            return asyncio.run_coroutine_threadsafe(contained(value), self._loop).result()
        return value

    def _failed(self, batch_id: bytes, error: BaseException) -> list[Buffer]:
        text = error_text(error)
        now = time.monotonic()
        trace = now - self._traced > 1.0  # a flood of poison must not become a flood of tracebacks
        if trace:
            self._traced = now
        log.error("model %s failed on a batch: %s", self.model, text, exc_info=error if trace else None)
        return wire.failure(batch_id, text)


def _read_feedback(lesson: Lesson) -> Feedback:
    try:
        message = wire.parse_feedback(lesson.frames)
    except wire.WireError as e:
        raise TensorError(f"bad feedback from the server: {e}") from e
    inputs, outputs, truth = (
        {head.name: decode(frame, head.datatype, head.shape) for head, frame in tensors}
        for tensors in (message.inputs, message.outputs, message.truth)
    )
    return Feedback(
        application=message.application,
        user=message.user,
        rows=message.rows,
        inputs=inputs,
        outputs=outputs,
        truth=truth,
        label=message.label,
        loss=message.loss,
    )


def _run(value: Awaitable[object]) -> object:
    return asyncio.run(contained(value))


def _open(model: Model[..., Any], delivery: Delivery) -> tuple[list[Array | None], Batch]:
    """The arrays of a batch in declared order, checked against the declaration; None for one that was left out."""
    try:
        message = wire.parse_batch(delivery.header, delivery.frames)
    except wire.WireError as e:
        raise TensorError(f"bad batch from the server: {e}") from e
    came = {head.name: (head, frame) for head, frame in zip(message.heads, message.frames, strict=True)}
    arrays: list[Array | None] = []
    for tensor in model.inputs:
        if tensor.name not in came and tensor.optional:
            arrays.append(None)
            continue
        if tensor.name not in came:
            raise TensorError(f'input "{tensor.name}" is missing, got {sorted(came)}')
        head, frame = came[tensor.name]
        rows_fit = not model.batched or head.shape[:1] == (message.rows,)
        if head.datatype != tensor.datatype or not tensor.accepts(head.shape) or not rows_fit:
            raise TensorError(
                f'input "{tensor.name}": declared {tensor.datatype} {list(tensor.shape)} and {message.rows} rows, '
                f"got {head.datatype} {list(head.shape)}"
            )
        try:
            arrays.append(decode(frame, head.datatype, head.shape))
        except TensorError as e:
            raise TensorError(f'input "{tensor.name}": {e}') from e
    requests = [
        Request(rows, parameters, priority)
        for rows, parameters, priority in zip(message.requests, message.parameters, message.priorities, strict=True)
    ]
    deadline = None if message.timeout is None else delivery.received + message.timeout
    return arrays, Batch(message.rows, requests, deadline)


def _close(model: Model[..., Any], batch_id: bytes, outputs: list[Array], batch: Batch) -> list[Buffer]:
    """The answer with a batch's outputs."""
    heads, frames = [], []
    for tensor, array in zip(model.outputs, outputs, strict=True):
        try:
            frames.append(encode(array, tensor.datatype))
        except TensorError as e:
            raise TensorError(f'output "{tensor.name}": {e}') from e
        heads.append(wire.TensorHead(tensor.name, tensor.datatype, array.shape))
    return wire.result(batch_id, heads, frames, batch.errors)

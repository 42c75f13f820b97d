"""The rows of several servers as one batch, and its outputs as an answer for each of them."""

from __future__ import annotations

import logging

import numpy as np

from .arbiter import Joint
from .batches import Batches
from .images import Given, Regions
from .link import Job, Link
from .models import Batch, error_text
from .tensors import Array, Buffer

log = logging.getLogger("shiva_container")

Answer = tuple[Job, list[Buffer]]
"""A batch, and the frames of its answer."""


class Union:
    """The batches of a :class:`Joint`, read and put together."""

    def __init__(self, batches: Batches, joint: Joint) -> None:
        self._batches = batches
        self._parts: list[tuple[Job, Batch, float]] = []
        self.unanswered = [job for job, _ in joint.parts]
        """The batches that have to be computed alone."""
        self.arrays: list[Given] = []
        self.batch: Batch | None = None
        """The rows of all; None if there is nothing to put together."""
        if len(self.unanswered) > 1:
            self._gather(joint)

    @property
    def links(self) -> list[Link]:
        """The links of the batches."""
        return [link for (_, link, _), _, _ in self._parts]

    def _gather(self, joint: Joint) -> None:
        read: list[list[Given]] = []
        for job, queued in joint.parts:
            delivery, _, session = job
            try:
                arrays, batch, _ = self._batches.read(delivery, session.arena)
            except Exception as e:  # it is read again alone, and answered with the error
                log.debug("a batch cannot be joined: %s", error_text(e))
                continue
            read.append(arrays)
            self._parts.append((job, batch, queued))
        if len(read) < 2:
            return
        try:
            for column in zip(*read, strict=True):
                if parts := [one for one in column if isinstance(one, Regions)]:
                    self.arrays.append(Regions.joined(parts))
                else:
                    self.arrays.append(np.concatenate([one for one in column if isinstance(one, np.ndarray)]))
        except (ValueError, MemoryError) as e:
            log.debug("batches cannot be joined: %s", error_text(e))
            return
        finally:
            del read
            self._settle()
        each = [batch for _, batch, _ in self._parts]
        deadlines = [batch.deadline for batch in each if batch.deadline is not None]
        self.batch = Batch(
            sum(batch.rows for batch in each),
            [request for batch in each for request in batch.requests],
            min(deadlines, default=None),
            traces=[trace for batch in each for trace in batch.traces],
        )

    def _settle(self) -> None:
        """Free the memory of gathered inputs: they have been copied."""
        for (delivery, _, session), _, _ in self._parts:
            if session.arena is not None:
                session.arena.settle(delivery.batch_id)

    def divide(self, outputs: list[Array]) -> list[Answer]:
        """The answer of each batch, with its rows of the outputs."""
        assert self.batch is not None
        answers: list[Answer] = []
        row = 0
        for job, batch, queued in self._parts:
            delivery, _, session = job
            end = row + batch.rows
            own = Batch(batch.rows, batch.requests)
            for at, text in self.batch.errors.items():
                if row <= at < end:
                    own.fail(at - row, text, invalid=at in self.batch.invalid)
            shares = self._batches.cut(outputs, row, end)
            frames = self._batches.write(delivery.batch_id, shares, own, session.arena)
            answers.append((job, _together(frames, self.batch.rows, queued)))
            row = end
        self.unanswered = [job for job in self.unanswered if all(job is not one for one, _ in answers)]
        return answers


def _together(frames: list[Buffer], rows: int, queued: float) -> list[Buffer]:
    """An answer with the rows of the execution in which it was made."""
    more = b',"together":%d' % rows + (b',"queued_ms":%.3f' % (queued * 1000) if queued else b"")
    frames[2] = bytes(frames[2])[:-1] + more + b"}"
    return frames

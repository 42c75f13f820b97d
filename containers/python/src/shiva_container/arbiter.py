"""A model that several servers share: which rows are next, and rows of several in one call.

An :class:`Arbiter` is idle while a model has one session: its batches then go straight to the
worker. With several sessions it holds the batches, grants offers of the servers, and gives the
worker the batches of one execution as one :class:`Joint`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from . import wire
from .models import Model
from .rounds import Execution, Seat, Sent, Table
from .session import Delivery, Session

if TYPE_CHECKING:
    from .link import Job, Link

DEFAULT_MOST = 128
"""The most rows of an execution of a model that declares none: the servers' default."""
_MOST = 1 << 53
"""No number of a server counts for more: floats have no larger one than 1e308, and JSON has."""

_Head = tuple[tuple[object, ...], ...]
"""The heads of inputs, which must be equal for batches to be joined; () if the model has none."""


class Joint:
    """Batches that are executed together, in place of a session in the worker's job."""

    ended = False
    """The worker drops the jobs of ended sessions. In a joint each batch is checked separately."""

    def __init__(self, execution: Execution[tuple[Job, _Head | None]]) -> None:
        self.execution = execution
        self.joint = self

    @property
    def parts(self) -> list[tuple[Job, float]]:
        """The batches, and for how many seconds each has waited for an earlier execution."""
        return [(one.body[0], self.execution.queued(one)) for one in self.execution.batches]


class Arbiter:
    """The sessions of one model. Any thread may use it.

    ``submit`` gives the worker a job, and ``attend`` tells the I/O thread that there is something
    to do for it. Grants are put aside, as the caller may hold the lock of a link, until ``send`` is
    called without such a lock.
    """

    def __init__(self, model: Model[..., object], submit: Callable[[Job], None], attend: Callable[[], None]) -> None:
        most = model.max_batch or DEFAULT_MOST
        self.waiting: deque[tuple[Link, Session, dict[str, object]]] = deque()
        """Messages for ``send`` to send."""
        self.shared = False
        """Whether there are several sessions."""
        self.submit = submit
        """Gives the worker a job."""
        self._attend = attend
        self._lock = threading.Lock()
        self._table: Table[tuple[Job, _Head | None]] = Table(model.concurrency, most if model.batched else 1, _fit)
        self._batched = model.batched
        self._seats: dict[Session, tuple[Seat, Link]] = {}
        self._links: dict[Seat, tuple[Link, Session]] = {}
        self._wake = float("inf")

    def join(self, link: Link, session: Session) -> None:
        """Add a session that has begun."""
        with self._lock:
            seat = self._table.join(grants=session.grants)
            self._seats[session] = seat, link
            self._links[seat] = link, session
            self._share()

    def leave(self, session: Session) -> None:
        """Remove a session that has ended."""
        with self._lock:
            if session in self._seats:
                seat, link = self._seats.pop(session)
                del self._links[seat]
                self._table.leave(seat)
                link.submit = self.submit
                self._share()
        self._run()

    def arrive(self, job: Job) -> None:
        """Take a batch that has arrived."""
        delivery, link, session = job
        now = time.monotonic()
        with self._lock:
            if session not in self._seats or (not self.shared and self._table.idle):
                link.submit = self.submit
                alone = True
            else:
                alone = False
                rows, grant, best, left, inputs = self._read(delivery)
                one = Sent(self._seats[session][0], rows, (job, inputs), best)
                self._table.arrive(one, grant, left, now)
        if alone:
            self.submit(job)
        else:
            self._run()

    def offered(self, session: Session, offer: dict[str, object]) -> None:
        """Note that a server has rows, or gives a grant back."""
        now = time.monotonic()
        with self._lock:
            if session not in self._seats:
                return
            seat = self._seats[session][0]
            if grant := _number(offer, "pass"):
                self._table.give_back(seat, grant, _number(offer, "rows"), now)
            else:
                due = offer.get("due_ms")
                seconds = max(0, min(due, _MOST)) / 1000 if isinstance(due, int | float) else 0.0
                self._table.offer(seat, _number(offer, "rows"), seconds, now)
        self._run()

    def done(self, joint: Joint) -> None:
        """Note that the worker has answered a joint."""
        with self._lock:
            self._table.done(joint.execution, time.monotonic())
        self._run()
        self.send()

    def tick(self, now: float) -> float:
        """Do the work that is due, from the I/O thread; when to call again."""
        if now >= self._wake:
            self._run()
        return self._wake

    def send(self) -> None:
        """Send the grants that were put aside. The caller must hold no lock of a link."""
        while self.waiting:
            try:
                link, session, message = self.waiting.popleft()
            except IndexError:  # another thread was faster
                return
            link.tell(session, [wire.GRANT, wire.to_json(message)])

    def _run(self) -> None:
        """Act on the table until there is nothing left to do."""
        before = self._wake
        while True:
            with self._lock:
                grants, execution, wake = self._table.next(time.monotonic())
                self._wake = wake
                for one in grants:
                    link, session = self._links[one.seat]
                    message: dict[str, object] = {"grant": one.number, "here": one.here, "elsewhere": one.elsewhere}
                    if one.target:
                        message["target"] = one.target
                    self.waiting.append((link, session, message))
            if execution is not None:
                joint = Joint(execution)
                first = execution.batches[0].body[0]
                self.submit((first[0], first[1], cast(Session, joint)))
            if not grants and execution is None:
                break
        if self._wake < before:
            self._attend()

    def _share(self) -> None:
        """Tell servers whether they share the model, if that has changed."""
        self.shared = len(self._seats) > 1
        for session, (seat, link) in self._seats.items():
            if self.shared:
                link.submit = self.arrive
            if seat.grants and session.each != self.shared:
                session.each = self.shared
                self.waiting.append((link, session, {"each": self.shared}))

    def _read(self, delivery: Delivery) -> tuple[int, int, int, int, _Head | None]:
        """Rows, grant, best and left of a batch, and the heads that joint batches share.

        The heads are None if it cannot be joined.
        """
        try:
            head = wire.from_json(delivery.header)
            tensors = [wire.TensorHead.parse(one) for one in cast(list[object], head.get("inputs") or [])]
        except (wire.WireError, TypeError):
            return 1, 0, 0, 0, None  # it fails alone
        inputs: _Head | None = None
        if self._batched and all(one.shape for one in tensors):
            inputs = tuple((one.name, one.datatype, one.shape[1:]) for one in tensors)
        numbers = [_number(head, key) for key in ("grant", "best", "left")]
        return max(1, _number(head, "rows")), numbers[0], numbers[1], numbers[2], inputs


def _fit(a: tuple[Job, _Head | None], b: tuple[Job, _Head | None]) -> bool:
    return a[1] == b[1] and a[1] is not None


def _number(head: dict[str, object], key: str) -> int:
    value = head.get(key)
    return min(max(0, value), _MOST) if type(value) is int else 0

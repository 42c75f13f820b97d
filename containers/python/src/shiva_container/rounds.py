"""Which server's rows a shared container executes next: a pure table.

It is ``scheduler/rounds`` of the server's repository in Python: every server with rows is granted a
part of an execution, and the batches that they send are executed together. Times are seconds of one
clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from .callers import MOST_LATER, MOSTLY, Costs, Habit

LEAD = 4
"""By how many executions' worth of rows a server may be ahead of others."""
_TRUST, _TRUST_MORE = 4, 16
"""A claim of rows counts up to a multiple of the rows that the server sent lately, plus a few."""
_LEAST_PATIENCE, _MOST_PATIENCE, _FIRST_PATIENCE = 0.001, 0.02, 0.005
_QUICK = 0.0005
"""The next execution is granted ahead of the end of executions this short."""
_FORGIVEN = 1.0
"""A server that offers rows this long after a grant has not received the grant."""

Body = TypeVar("Body")


@dataclass(eq=False)
class Seat:
    """A session with a server; ``grants``: it sends batches only when they are granted."""

    grants: bool
    wants: bool = False
    mean: float = 0.0
    offered: int = 0
    due: float = 0.0
    sent: int = 0
    grant: int = 0
    asked: float = 0.0
    reply: float = _FIRST_PATIENCE / 4
    served: float = 0.0
    round: int = 0
    waited: bool = False
    again: int = 0
    habit: Habit = field(default_factory=Habit)

    @property
    def claim(self) -> int:
        """How many rows wait at the server, as far as is known."""
        return max(self.offered, int(self.mean + 0.5))

    def believed(self, rows: int) -> int:
        """How many rows count of those that it says it has."""
        return min(rows, _TRUST * self.sent + _TRUST_MORE)

    def had(self, rows: int) -> None:
        """Note how many rows waited when it answered; other containers take some of them."""
        self.mean = self.mean or self.believed(rows)
        self.mean += (self.believed(rows) - self.mean) / 8
        self.offered = 0


@dataclass(eq=False)
class Sent(Generic[Body]):
    """A batch. ``best`` is the best number of rows of an execution for its server, 0: unknown."""

    seat: Seat
    rows: int
    body: Body
    best: int = 0
    came: float = 0.0
    held: bool = False


@dataclass(eq=False)
class Execution(Generic[Body]):
    """Batches that are executed in one call."""

    began: float
    batches: list[Sent[Body]] = field(default_factory=list)
    rows: int = 0

    def queued(self, one: Sent[Body]) -> float:
        """How long a batch has waited for an execution before this one."""
        return self.began - one.came if one.held else 0.0


@dataclass(frozen=True)
class Grant:
    """A grant to be sent, with the rows that wait in its server and in others of the round."""

    seat: Seat
    number: int
    here: int
    elsewhere: int
    target: int


class Table(Generic[Body]):
    """The sessions of a container that executes ``lanes`` batches at once, ``most`` rows each."""

    def __init__(self, lanes: int, most: int, fit: Callable[[Body, Body], bool]) -> None:
        """``fit`` says whether two batches can be in one execution."""
        self._lanes = lanes
        self._most = most
        self._fit = fit
        self._seats: list[Seat] = []
        self._queue: list[Sent[Body]] = []
        self._busy = 0
        self._open = False
        self._until = 0.0
        self._round = self._number = 0
        self._took = _QUICK
        self._size = self._best = 0.0
        self._costs = Costs()

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be executed, and nothing is."""
        return not (self._busy or self._queue)

    def join(self, *, grants: bool) -> Seat:
        """Add a session."""
        seat = Seat(grants, served=min((one.served for one in self._seats), default=0.0))
        self._seats.append(seat)
        return seat

    def leave(self, seat: Seat) -> None:
        """Remove a session, which is granted nothing more. Its sent batches are executed."""
        self._seats.remove(seat)
        seat.waited = seat.wants = seat.grants = False

    def offer(self, seat: Seat, rows: int, due: float, now: float) -> None:
        """Rows wait at a server, the most urgent for ``due``; 0: they have no deadline."""
        if seat.grant and now - seat.asked > _FORGIVEN:
            seat.grant = 0
        seat.habit.returns(now, self._took)
        seat.wants, seat.offered = seat.grants, max(1, seat.believed(rows))
        seat.due = now + due if due > 0 else 0.0

    def give_back(self, seat: Seat, grant: int, again: int, now: float) -> None:
        """A server has no row for a grant, and offers ``again`` rows of clients that start over."""
        current = grant == seat.grant
        self._answered(seat, grant, now)
        seat.had(0)
        if current and again > 0 and seat.again != seat.round and not seat.wants:
            seat.again, seat.round = seat.round, 0
            seat.habit.expected, seat.habit.answered = True, now
            seat.offered = seat.believed(again)

    def arrive(self, one: Sent[Body], grant: int, left: int, now: float) -> None:
        """Take a batch that has arrived, by a grant or by none, 0; ``left`` rows still wait."""
        seat = one.seat
        one.came = now
        one.rows = min(one.rows, self._most)  # nothing has looked at them yet
        self._answered(seat, grant, now)
        seat.sent = max(one.rows, seat.sent * 7 // 8)
        seat.had(one.rows + left)
        seat.wants = seat.wants or (seat.grants and left > 0)
        self._queue.append(one)

    def done(self, execution: Execution[Body], now: float) -> None:
        """An execution is over."""
        self._busy -= 1
        self._took = now - execution.began
        self._size += (execution.rows - self._size) / 8
        self._costs.add(execution.rows, self._took)
        for one in execution.batches:
            one.seat.habit.answers(one.seat.wants, now)

    def next(self, now: float) -> tuple[list[Grant], Execution[Body] | None, float]:
        """The next step after any of the above, until there is none; and when to ask again."""
        never = float("inf")
        if (until := self._hold(now)) > now:
            return [], None, until
        if self._busy < self._lanes or (self._busy == self._lanes and self._took < _QUICK):
            if self._queue:
                self._begin_round(now)
            if grants := self._grant(now):
                return grants, None, never
        if not self._open or self._busy >= self._lanes:
            return [], None, never
        if now < self._until and any(seat.waited for seat in self._seats):
            return [], None, self._until
        for seat in self._seats:
            seat.waited = False
        self._open = False
        return [], self._begin(now) if self._queue else None, never

    def _answered(self, seat: Seat, grant: int, now: float) -> None:
        if grant and grant == seat.grant:
            seat.grant = 0
            seat.reply += (min(now - seat.asked, _MOST_PATIENCE) - seat.reply) / 8
            seat.waited = False

    def _hold(self, now: float) -> float:
        """Until when a round waits for servers that are about to offer rows; now: not."""
        if (self._queue and not self._open) or self._busy != self._lanes - 1:
            return now
        if any(seat.waited for seat in self._seats):
            return now
        fixed, each = self._costs.line()
        until, coming, others = now, 0, False
        waiting = sum(one.rows for one in self._queue)
        seats = [seat for seat in self._seats if not self._granted(seat)]
        for seat in seats:
            habit = seat.habit
            if seat.wants:
                waiting += seat.claim
                others = others or habit.asks < MOSTLY
            elif habit.expected and habit.asks > MOSTLY and 0 < habit.end - now < habit.asks * fixed:
                until = max(until, habit.end)
                coming += seat.claim
        took = fixed + each * (waiting + coming)
        if until == now or not waiting or (others and until - now + took > MOST_LATER * (fixed + each * waiting)):
            return now
        urgent = min((seat.due for seat in seats if seat.wants and seat.due), default=float("inf"))
        return max(now, min(until, urgent - 1.25 * took))

    def _granted(self, seat: Seat) -> bool:
        """Whether a server has had its grant of the open round."""
        return self._open and seat.round == self._round

    def _begin_round(self, now: float) -> None:
        if not self._open:
            self._open, self._until = True, now
            self._round += 1

    def _grant(self, now: float) -> list[Grant]:
        """Grant batches of the open round to seats that want one; open a round if none is."""
        in_round = [seat for seat in self._seats if self._granted(seat)]
        asked = [seat for seat in self._seats if seat.wants and not seat.grant and seat not in in_round]
        places = self._most - len(in_round)
        if not asked or places <= 0:
            return []
        if len(asked) > places:
            asked = _choose(asked, LEAD * max(1.0, self._size))[:places]
        everything = sum(seat.claim for seat in in_round + asked)
        self._begin_round(now)
        grants, patience = [], _LEAST_PATIENCE
        for seat in asked:
            self._number += 1
            seat.wants, seat.waited, seat.grant = False, True, self._number
            seat.asked, seat.round = now, self._round
            patience = max(patience, min(4 * seat.reply, _MOST_PATIENCE))
            elsewhere = everything - seat.claim
            grants.append(Grant(seat, self._number, seat.claim, elsewhere, int(self._best + 0.5)))
        self._until = max(self._until, now + patience)
        return grants

    def _begin(self, now: float) -> Execution[Body]:
        """Take as many batches as may be in one execution, in the order of their arrival."""
        execution: Execution[Body] = Execution(now)
        kept, best, of = [], 0, 0
        for one in self._queue:
            first = execution.batches[0] if execution.batches else None
            if first and (execution.rows + one.rows > self._most or not self._fit(first.body, one.body)):
                one.held = True
                kept.append(one)
                continue
            execution.batches.append(one)
            execution.rows += one.rows
            one.seat.served += one.rows
            one.seat.habit.executing += 1
            if one.best:
                best, of = best + one.best * one.rows, of + one.rows
        if of:
            self._best = self._best or best / of
            self._best += (best / of - self._best) / 4
        self._queue = kept
        self._busy += 1
        return execution


def _choose(asked: list[Seat], lead: float) -> list[Seat]:
    """The most urgent first, but sessions that are ahead of others by ``lead`` rows last."""
    least = min(seat.served for seat in asked)
    return sorted(asked, key=lambda seat: (seat.served > least + lead, seat.due or float("inf")))

"""One registration of one model with one server, as a pure state machine.

No socket, clock or thread: frames and the time are arguments, frames to send are put in ``outbox``,
and ``ended`` says when and why it is over. The shell around it is in link.py.

    hello --> welcome --> LIVE --> draining --> goodbye --> last result --> ended
      |                    |  goodbye ------------------------^
      +--> refused         +--> silence, bad message: ended
      +--> WAITING --> goodbye: ended, to register again
"""

from __future__ import annotations

import enum
import itertools
import logging
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from . import wire
from .arena import Arena
from .tensors import Buffer

if TYPE_CHECKING:
    from .arbiter import Joint

log = logging.getLogger("shiva_container")

EXCUSE_SECONDS = 5.0
"""How often at most a server is told that this process may be silent."""
_PAUSE: list[Buffer] = [wire.HEARTBEAT, wire.to_json({"pause": True})]
HANDSHAKE_SECONDS = 10.0
"""How long a server may take to answer hello."""
SLOWEST = 16 << 10
"""Bytes a second: no message is expected to arrive more slowly."""
_KNOWN = (wire.WELCOME, wire.REFUSED, wire.WAIT, wire.HEARTBEAT, wire.FEEDBACK)


class State(enum.Enum):
    """The state of a session."""

    HELLO = "hello"
    WAITING = "waiting"
    """The server has no place for the model yet."""
    LIVE = "live"
    DRAINING = "draining"
    LEAVING = "leaving"
    ENDED = "ended"


class Outcome(enum.Enum):
    """The effect of a session's end on the next session."""

    LOST = "lost"
    """Try again soon."""
    WAITED = "waited"
    """The wait for a place is over: try again at once."""
    REFUSED = "refused"
    """Try again, but not soon: an operator has to change something first."""
    RETIRED = "retired"
    """The server wants no more of this model."""
    DRAINED = "drained"
    """The container requested the end."""


@dataclass(frozen=True)
class End:
    """Why a session is over."""

    outcome: Outcome
    reason: str


class Delivery(NamedTuple):
    """A batch as received, not yet parsed."""

    batch_id: bytes
    header: Buffer
    frames: Sequence[Buffer]
    received: float
    session: int = 0
    """The number of the session, by which its pictures are told from those of others."""


@dataclass(frozen=True)
class Lesson:
    """Feedback as received, not yet parsed, without its kind."""

    frames: Sequence[Buffer]


@dataclass(frozen=True)
class Offer:
    """A server's offer of waiting rows, not yet checked."""

    head: dict[str, object]


_numbers = itertools.count(1)


class Session:
    """The container's side of one session. All times are seconds of one monotonic clock."""

    joint: Joint | None = None
    """None; the joint that takes the place of a session in a job of several batches has itself
    here."""

    def __init__(
        self,
        hello: bytes,
        now: float,
        *,
        shapes_matter: bool = False,
        arena: Arena | None = None,
        images: bool = False,
    ) -> None:
        """``shapes_matter``: leave a server for which a leading -1 always counts rows.

        ``images``: the model has inputs that are pictures.
        """
        self._images = images
        self._number = next(_numbers)
        self.arena = arena
        self.state = State.HELLO
        self.ended: End | None = None
        self.outbox: deque[list[Buffer]] = deque([[wire.HELLO, hello]])
        self.welcomed: float | None = None
        self._shapes_matter = shapes_matter
        self.server = ""
        self.waits_for = ""
        """What kept the server from registering the model at once."""
        self.replicas = 0
        """Sessions of the model that the server has, including this one; 0: it does not say."""
        self.grants = False
        """Whether the server waits for grants when it is told to."""
        self.each = False
        """Whether it was told to. Used by the arbiter only."""
        self._pending: set[bytes] = set()
        self._heartbeat = 0.0
        self._dead_after = HANDSHAKE_SECONDS
        self._max_message = 0
        self._heard = now
        self._began = float("inf")
        self._sent = now
        self._excused = self._pause_sent = float("-inf")
        self._goodbye = End(Outcome.DRAINED, "drained")
        self._odd_kinds: set[bytes] = set()

    @property
    def pending(self) -> int:
        """Batches received and not yet answered."""
        return len(self._pending)

    def hear(self, partial: int, now: float) -> None:
        """Note that bytes have arrived, ``partial`` of them of an incomplete message.

        A message that grows too slowly is no sign of life.
        """
        self._began = min(self._began, now) if partial else math.inf
        if self.state is State.HELLO:
            return  # until then only an answer to hello counts
        if not partial or now - self._began <= self._dead_after + partial / SLOWEST:
            self._heard = now

    def receive(self, frames: Sequence[Buffer], now: float) -> Delivery | Lesson | Offer | None:
        """Handle one message. Batches, feedback and offers are returned to the caller."""
        if self.ended:
            return None
        kind = frames[0] if type(frames[0]) is bytes else bytes(frames[0])
        try:
            if kind == wire.BATCH:
                return self._batch(frames, now)
            if kind == wire.FEEDBACK and self.state is not State.HELLO:
                return Lesson(frames[1:])
            if kind == wire.OFFER and self.state is not State.HELLO:
                return Offer(wire.from_json(_frame(frames, 1)))
            if kind == wire.WELCOME and self.state is State.HELLO:
                self._welcome(wire.from_json(_frame(frames, 1)), now)
            elif kind == wire.WAIT and self.state is State.HELLO:
                self._wait(wire.from_json(_frame(frames, 1)), now)
            elif kind == wire.REFUSED and self.state is State.HELLO:
                self._end(Outcome.REFUSED, str(wire.from_json(_frame(frames, 1)).get("error", "no reason given")))
            elif kind == wire.ARENA and self.arena is not None and self.state is not State.HELLO:
                self._tell(self.arena.take(wire.from_json(_frame(frames, 1)), self._pending))
            elif kind == wire.HEARTBEAT and len(frames) > 1:
                self._count(wire.from_json(frames[1]))
            elif kind == wire.GOODBYE:
                self._take_leave(wire.from_json(_frame(frames, 1)))
            elif kind not in _KNOWN and kind not in self._odd_kinds:
                self._odd_kinds.add(kind)
                log.warning("the server sent %r, which this version does not know; ignored", kind[:40])
        except wire.WireError as e:
            self._end(Outcome.LOST, f"bad {kind.decode(errors='replace')} from the server: {e}")
        return None

    def answer(self, batch_id: bytes, frames: list[Buffer]) -> None:
        """Put the answer to a batch in the outbox; late answers of an ended session are dropped."""
        if self.ended or batch_id not in self._pending:
            return
        self._pending.discard(batch_id)
        size = sum(map(len, frames))
        if size > self._max_message > 0:
            if self.arena is not None:
                self.arena.put(batch_id)
            frames = wire.failure(
                batch_id, f"the result has {size} bytes, the server takes at most {self._max_message} in a message"
            )
        self.outbox.append(frames)
        if self.arena is not None and (news := self.arena.answered(batch_id)):
            self._tell(news)
        if self.state is State.LEAVING:
            self._leave_if_done()

    def drain(self, reason: str) -> None:
        """Ask the server to send no more; the session ends with the server's goodbye."""
        if self.state in (State.HELLO, State.WAITING):
            self._end(Outcome.DRAINED, reason)
        elif self.state is State.LIVE:
            self.state = State.DRAINING
            self._goodbye = End(Outcome.DRAINED, reason)
            self.outbox.append([wire.DRAINING])

    def excuse(self, now: float) -> None:
        """Tell the server, repeatedly, that other code in this process may delay this session.

        While this session's own batch is computed the server is patient anyway.
        """
        self._excused = now + 2 * EXCUSE_SECONDS
        if self.state in (State.WAITING, State.LIVE, State.DRAINING) and now - self._pause_sent >= EXCUSE_SECONDS:
            self._pause_sent = now
            self.outbox.append(_PAUSE)

    def lost(self, reason: str) -> None:
        """Note that the connection is lost."""
        if self.state is State.LEAVING or (self.state is State.DRAINING and not self._pending):
            self._end(self._goodbye.outcome, self._goodbye.reason)
        else:
            self._end(Outcome.LOST, reason)

    def sent(self, now: float) -> None:
        """Note that the outbox was sent."""
        self._sent = now

    def tick(self, now: float) -> None:
        """Send a heartbeat when it is due, and end when the server has been silent for too long."""
        if self.ended:
            return
        if now - self._heard >= self._dead_after:
            what = "no answer to hello" if self.state is State.HELLO else "the server has been silent"
            self.lost(f"{what} for {self._dead_after:g} s")
        elif self._heartbeat and now - self._sent >= self._heartbeat and not self.outbox:
            if now < self._excused:
                self._pause_sent = now
            self.outbox.append(_PAUSE if now < self._excused else [wire.HEARTBEAT])

    def wake(self) -> float:
        """The latest time at which tick has something to do."""
        dead = self._heard + self._dead_after
        return min(dead, self._sent + self._heartbeat) if self._heartbeat else dead

    def _tell(self, messages: list[dict[str, object]]) -> None:
        self.outbox += [[wire.ARENA, wire.to_json(message)] for message in messages]

    def _welcome(self, head: dict[str, object], now: float) -> None:
        if head.get("protocol") != wire.PROTOCOL:
            raise wire.WireError(f"protocol {wire.PROTOCOL} expected, got {head.get('protocol')!r}")
        self._keep_times(head)
        limit = head.get("max_message_bytes")
        self._max_message = limit if isinstance(limit, int) else 0
        self.server = str(head.get("server", ""))
        self._count(head)
        self.grants = head.get("grants") is True
        if self._shapes_matter and "batched" not in head:
            self._end(
                Outcome.REFUSED,
                f"{self.server or 'the server'} does not know batched and ragged, and would cut this model's requests "
                "into rows: it needs a newer version",
            )
            return
        if self._images and head.get("images") is not True:
            log.warning("%s takes no files of pictures: clients have to send pixels", self.server or "the server")
        notes = head.get("notes")
        for note in notes if isinstance(notes, list) else []:
            log.info("note from the server: %s", note)
        if self.arena is not None and isinstance(offer := head.get("arena"), dict):
            self._tell(self.arena.take(offer, ()))
        self.welcomed = self._heard = now
        self.state = State.LIVE
        if now < self._excused:
            self.excuse(now)

    def _keep_times(self, head: dict[str, object]) -> None:
        times = [head.get(key) for key in ("heartbeat_ms", "dead_after_ms")]
        if not all(isinstance(value, int | float) and value > 0 for value in times):
            raise wire.WireError(f"heartbeat_ms and dead_after_ms must be positive, got {times}")
        self._heartbeat, self._dead_after = (float(str(value)) / 1000 for value in times)

    def _wait(self, head: dict[str, object], now: float) -> None:
        """Stay connected until the server has a place for the model, which it tells by goodbye."""
        self._keep_times(head)
        self._heard = now
        self.state = State.WAITING
        self.waits_for = str(head.get("error", "no reason given"))

    def _count(self, head: dict[str, object]) -> None:
        replicas = head.get("replicas")
        if isinstance(replicas, int) and replicas > 0:
            self.replicas = replicas

    def _batch(self, frames: Sequence[Buffer], now: float) -> Delivery | None:
        if self.state in (State.HELLO, State.WAITING):
            raise wire.WireError("a batch before welcome")
        if len(frames) < 3:
            raise wire.WireError(f"{len(frames)} frames, at least 3 expected")
        batch_id = bytes(frames[1])
        if len(batch_id) != 8:
            raise wire.WireError(f"the id must have 8 bytes, got {len(batch_id)}")
        if batch_id in self._pending:
            raise wire.WireError(f"batch {batch_id.hex()} came twice")
        delivery = Delivery(batch_id, frames[2], frames[3:], now, self._number)
        self._pending.add(batch_id)
        return delivery

    def _take_leave(self, head: dict[str, object]) -> None:
        reason = str(head.get("reason", "goodbye"))
        if self.state is State.WAITING and head.get("reconnect"):
            self._goodbye = End(Outcome.WAITED, reason)
        elif self.state is not State.DRAINING:
            self._goodbye = End(Outcome.LOST if head.get("reconnect") else Outcome.RETIRED, reason)
        self.state = State.LEAVING
        self._leave_if_done()

    def _leave_if_done(self) -> None:
        if self.state is State.LEAVING and not self._pending:
            self._end(self._goodbye.outcome, self._goodbye.reason)

    def _end(self, outcome: Outcome, reason: str) -> None:
        if not self.ended:
            self.ended = End(outcome, reason)
            self.state = State.ENDED


def _frame(frames: Sequence[Buffer], i: int) -> Buffer:
    if i >= len(frames):
        raise wire.WireError(f"{len(frames)} frames, at least {i + 1} expected")
    return frames[i]

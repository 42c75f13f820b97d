"""One model's registration with one server: opens, reopens and closes its connection.

A link is used by two threads: the container's I/O thread, which opens and closes, keeps the session
alive and reads while no other thread does; and the model's compute threads, which send their
answers themselves, and read themselves while the model is quick (see runner.py). Its lock is held
only during calls that do not block. Which thread polls the socket matters only for speed.
"""

from __future__ import annotations

import itertools
import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from .arbiter import Arbiter
from .arena import Arena
from .connection import Connection, Lost
from .models import Model
from .secure import TLS
from .session import Delivery, End, Lesson, Offer, Outcome, Session, State
from .subset import AWAY_SECONDS
from .tensors import Buffer
from .token import Token

log = logging.getLogger("shiva_container")

FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 5.0
REFUSED_RETRY_SECONDS = 30.0
_BURST = 64
"""Reads of one socket before the others get their turn."""


Job = tuple[Delivery, "Link", Session]
"""A batch and where to send its answer: one session of a link, not the one after it."""


class Link:
    """One model and one endpoint.

    ``hello`` makes the registration, with a token. ``arbiter`` and ``teach`` take batches and
    feedback, in the thread that read them; ``attend`` tells the I/O thread that there is something
    to do for it; ``leave`` takes over a connection that is being closed.
    """

    def __init__(
        self,
        model: Model[..., Any],
        endpoint: str,
        hello: Callable[..., bytes],
        arbiter: Arbiter,
        teach: Callable[[Lesson], None],
        attend: Callable[[], None],
        leave: Callable[[Connection], None],
        *,
        arena: bool = False,
        token: Token | None = None,
        tls: TLS | None = None,
    ) -> None:
        self.model = model
        self.endpoint = endpoint
        self.listed = True
        """Whether the endpoint is still a server's. If not, an ended session is not replaced."""
        self.wanted = True
        """Whether the model is fit to serve; if not, the session drains."""
        self.retired = False
        self.choice: dict[str, int] | None = None
        """With how many of how many servers the container has sessions; None: all."""
        self._since = time.monotonic()  # without a session
        self.called = float("-inf")
        """When the last call for this link began."""
        self.led = False
        """Whether a compute thread waits for the socket, so that the I/O thread need not."""
        self.blocked = False
        """Whether the socket has to become writable before the rest can be sent."""
        self.session: Session | None = None
        self._lock = threading.Lock()
        self._hello = hello
        self._arbiter = arbiter
        self.submit = arbiter.submit
        """Takes batches: the worker's, or the arbiter's while several servers share the model."""
        self._teach = teach
        self._attend = attend
        self._leave = leave
        self._arena = arena
        self._token = token or Token("")
        self._sent_token = ""  # the token of the last registration
        self._tls = tls
        self._connection: Connection | None = None
        self._attempts = 0
        self._next_try = 0.0
        self._logged = ""
        self._served = False  # a server has registered the model here

    @property
    def live(self) -> bool:
        """Whether the server may send batches."""
        return self.session is not None and self.session.state is State.LIVE

    @property
    def replicas(self) -> int:
        """Sessions of the model that the server has, including this one; 0: unknown."""
        session = self.session
        return session.replicas if session is not None and session.state is State.LIVE else 0

    def away(self, now: float) -> bool:
        """Whether the server has been unreachable for a while, without having announced that."""
        return not self.live and not self.retired and now - self._since > AWAY_SECONDS

    @property
    def pending(self) -> int:
        """Batches received and not yet answered."""
        session = self.session
        return 0 if session is None else session.pending

    @property
    def number(self) -> int:
        """The descriptor of the connection, -1 if there is none."""
        connection = self._connection
        return -1 if connection is None else connection.socket.fileno()

    # The I/O thread.

    def tick(self, now: float, *, excused: bool = False) -> None:
        """Do what is due: open, send, keep alive, close. ``excused``: see :meth:`excuse`."""
        with self._lock:
            if self.session is None:
                if self.wanted and self.listed and not self.retired and now >= self._next_try:
                    self._open(now)
                else:
                    return
            assert self.session is not None
            if not self.wanted:
                self.session.drain("the model is not fit to serve")
            if now >= self.session.wake():
                # A model that blocks the interpreter also delays this thread: read the socket
                # before the server counts as silent.
                self._read(self.session)
            if excused:
                self.session.excuse(now)
            self.session.tick(now)
            self._flush(self.session)
            if self.session.ended:
                self._close(self.session, self.session.ended, now)

    def wake(self) -> float:
        """The latest time at which tick has something to do."""
        session = self.session
        if session is not None:
            return session.wake()
        return self._next_try if self.wanted and self.listed and not self.retired else float("inf")

    def close(self) -> None:
        """Close the connection. Unsent answers are sent; batches that wait are dropped."""
        with self._lock:
            self._hang_up()

    def drain(self, reason: str) -> None:
        """Drain the session, if there is one."""
        with self._lock:
            if self.session is not None:
                self.session.drain(reason)

    # Any thread.

    def readable(self) -> bool:
        """Read all that has arrived, and continue to send. Returns :attr:`live`."""
        with self._lock:
            session = self.session
            if session is None:
                return False
            self._read(session)
            if session.outbox or self.blocked or (self._connection is not None and self._connection.unsent):
                self._flush(session)
            live = session.state is State.LIVE
            self._served = self._served or live
        if self._arbiter.waiting:
            self._arbiter.send()
        return live

    def tell(self, session: Session, frames: list[Buffer]) -> None:
        """Send a message in a session, unless it has ended."""
        with self._lock:
            if session is not self.session or session.ended:
                return
            session.outbox.append(frames)
            self._flush(session)
            needy = session.ended is not None or (self.blocked and not self.led)
        if needy:
            self._attend()

    def excuse(self, now: float) -> None:
        """Tell the server once that other code in this process may now hold the interpreter."""
        with self._lock:
            if self.session is not None:
                self.session.excuse(now)
                self._flush(self.session)

    def answer(self, session: Session, batch_id: bytes, frames: list[Buffer]) -> None:
        """Answer a batch of a session, unless the session has ended."""
        with self._lock:
            session.answer(batch_id, frames)
            if session is not self.session:
                return
            self._flush(session)
            needy = session.ended is not None or (self.blocked and not self.led)
        if needy:
            self._attend()

    # With the lock.

    def _open(self, now: float) -> None:
        arena = Arena() if self._arena else None
        self._sent_token = self._token.read()
        hello = self._hello(token=self._sent_token, subset=self.choice, again=self._served)
        self.session = Session(
            hello, now, shapes_matter=self.model.cut_by_others, arena=arena, images=bool(self.model.images)
        )
        try:
            self._connection = Connection(self.endpoint, self._tls)
            self.blocked = True
        except OSError as e:
            self.session.lost(self._loss_reason(e.strerror or str(e)))
        except ValueError as e:  # a file that was valid when the process started
            self.session.lost(str(e))

    def _read(self, session: Session) -> None:
        """Read a burst of messages, and then handle the end of the connection, if it has ended.

        The clock is read after each read. A read releases the interpreter's lock, and a model may
        hold it for long before the read returns: an earlier time would make the server look silent.
        """
        connection = self._connection
        if connection is None or session.ended:
            return
        try:
            for turn in itertools.count():
                if turn >= _BURST and not connection.pending:
                    return
                messages = connection.receive()
                if messages is None:
                    return
                now = time.monotonic()
                session.hear(connection.partial, now)
                for frames in messages:
                    self._take(session, frames, now)
                if connection.drained:
                    return
        except Lost as e:
            session.lost(self._loss_reason(str(e)))

    def _take(self, session: Session, frames: list[Buffer], now: float) -> None:
        was = session.state
        delivery = session.receive(frames, now)
        if type(delivery) is Delivery:
            self.submit((delivery, self, session))
        elif isinstance(delivery, Lesson):
            self._teach(delivery)
        elif isinstance(delivery, Offer):
            self._arbiter.offered(session, delivery.head)
        elif was is State.HELLO and session.state is State.LIVE:
            log.info("model %s registered with %s at %s", self.model, session.server or "a server", self.endpoint)
            self._logged = ""
            self._arbiter.join(self, session)
        elif was is State.HELLO and session.state is State.WAITING:
            log.error(
                "model %s, server %s: no place yet: %s (waiting until there is)",
                self.model,
                self.endpoint,
                session.waits_for,
            )

    def _flush(self, session: Session) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            if connection.open:
                while session.outbox:
                    connection.send(session.outbox.popleft())
                    session.sent(time.monotonic())
            if connection.unsent:
                connection.flush()
        except Lost as e:
            session.lost(self._loss_reason(str(e)))
        self.blocked = connection.unsent

    def _loss_reason(self, what: str) -> str:
        """Why there is no session any more, as far as the connection shows."""
        if self.session is not None and self.session.welcomed is not None:
            return f"connection lost: {what}" if what else "connection lost"
        if self.session is not None and self.session.waits_for:
            return "the connection was lost while the model waited" + (f": {what}" if what else "")
        connection = self._connection
        if connection is not None and connection.reported:
            return f"the server ended the connection: {connection.reported}"
        if connection is not None and connection.reached and not connection.connected:
            return what or "the server closed the connection during the TLS handshake"
        if connection is None or not connection.connected:
            return f"cannot connect: {what}; is shivad running, and is that its port for containers?"
        return (
            f"no session: {what or 'the peer closed the connection'}; is that the server's port for containers "
            "(containers.listen, by default 7000)? clients use other ports; or more connections than "
            "containers.handshakes wait to register, as the server's log says then"
        )

    def _hang_up(self) -> None:
        if self.session is not None:
            self.session.lost("closed")
            self._arbiter.leave(self.session)
        if self._connection is not None:
            self._leave(self._connection)
        self._connection = self.session = None
        self.blocked = False

    def _close(self, session: Session, end: End, now: float) -> None:
        self._hang_up()
        if session.welcomed is not None and now - session.welcomed > 1.0:
            self._attempts = 0
        if session.welcomed is not None:
            self._since = now
        if end.outcome is Outcome.REFUSED:
            delay = REFUSED_RETRY_SECONDS if self._token.read() == self._sent_token else FIRST_RETRY_SECONDS
        elif end.outcome is Outcome.DRAINED:
            delay = 0.0
        elif end.outcome is Outcome.WAITED:
            delay = FIRST_RETRY_SECONDS
        else:
            delay = min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2**self._attempts)
            self._attempts = min(self._attempts + 1, 16)
        delay *= random.uniform(0.5, 1.0)  # many containers must not reconnect in step
        self._next_try = now + delay
        self.retired = end.outcome is Outcome.RETIRED
        self._log_end(end, delay)

    def _log_end(self, end: End, delay: float) -> None:
        where = f"model {self.model}, server {self.endpoint}"
        if end.outcome is Outcome.REFUSED:
            log.error("%s: registration refused: %s (next try in %.0f s)", where, end.reason, delay)
        elif end.outcome is Outcome.LOST:
            # The same message every few seconds is of no use.
            level = logging.DEBUG if end.reason == self._logged else logging.WARNING
            log.log(level, "%s: %s; trying again", where, end.reason)
            self._logged = end.reason
        else:
            log.info("%s: session ended: %s", where, end.reason)

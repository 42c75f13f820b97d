"""The sockets of one model's registration with one server: opens, reopens with back-off, closes.

A new DEALER socket is made for every session, and ZeroMQ's own reconnecting is put off until long after:
it would join a restarted server without a hello and hand it the answers to its predecessor's questions. It
is not switched off (an interval of -1), because then ZeroMQ throws away what it had received when the
connection ended, and a goodbye is just that. A socket monitor tells of the end at once. Everything here
runs in the container's I/O thread.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from .models import Model
from .runner import Job
from .session import End, Lesson, Outcome, Session, State
from .tensors import Buffer

log = logging.getLogger("shiva_container")

FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 5.0
REFUSED_RETRY_SECONDS = 30.0
LINGER_MS = 1000
"""How long a closed socket may take to bring its last answers out."""

_GONE = zmq.Event.DISCONNECTED | zmq.Event.CLOSED
_NEWS = _GONE | zmq.Event.CONNECTED
_NEVER_MS = 3_600_000
_UNREACHABLE_MS = 15_000
"""How long the other machine may leave what was sent without an acknowledgement. While an announced message comes, and
that may take long, nothing else would tell that its cable was cut."""
_BURST = 64
"""Messages read from one socket before the others get their turn."""


class Link:
    """One model and one endpoint."""

    def __init__(
        self,
        model: Model[..., Any],
        endpoint: str,
        hello: bytes,
        context: zmq.Context[zmq.Socket[bytes]],
        poller: zmq.Poller,
        submit: Callable[[Job], None],
        teach: Callable[[Lesson], None],
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self.model = model
        self.endpoint = endpoint
        self.listed = True
        """Whether the endpoint is still among the servers; if not, a lost session is not replaced."""
        self.wanted = True
        """Whether the model is fit to serve; if not, the session drains."""
        self.retired = False
        self.session: Session | None = None
        self._hello = hello
        self._context = context
        self._poller = poller
        self._submit = submit
        self._teach = teach
        self._post = post
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._attempts = 0
        self._next_try = 0.0
        self._told = ""
        self._connected = False

    @property
    def live(self) -> bool:
        """Whether the server may send batches."""
        return self.session is not None and self.session.state is State.LIVE

    def owns(self, socket: object) -> bool:
        """Whether a socket that the poller names is one of ours."""
        return socket is not None and socket in (self._socket, self._monitor)

    def tick(self, now: float) -> None:
        """Do what is due: open, send, keep alive, close."""
        if self.session is None:
            if self.wanted and self.listed and not self.retired and now >= self._next_try:
                self._open(now)
            else:
                return
        assert self.session is not None
        if not self.wanted:
            self.session.drain("the model is not fit to serve")
        if now >= self.session.wake():
            # A model that kept the interpreter to itself has kept us from reading, too: what lies in the socket
            # counts before the silence does.
            self.readable()
        self.session.tick(now)
        self._flush(now)
        if self.session.ended:
            self._close(self.session, self.session.ended, now)

    def wake(self) -> float:
        """When tick has something to do at the latest."""
        if self.session is not None:
            return self.session.wake()
        return self._next_try if self.wanted and self.listed and not self.retired else float("inf")

    def readable(self) -> None:
        """Take what has come: first messages, then news of the connection, so that a last word is heard."""
        session, monitor = self.session, self._monitor
        if session is None or monitor is None:
            return
        gone = False
        while monitor.poll(0):
            event = parse_monitor_message(monitor.recv_multipart())["event"]
            self._connected |= bool(event & zmq.Event.CONNECTED)
            gone |= bool(event & _GONE)
        while self._receive(session) and gone:  # what a closed connection has left has an end
            pass
        if gone:
            session.lost("connection lost" if session.welcomed is not None else self._why())

    def _why(self) -> str:
        """Why there is no session, as far as the connection shows."""
        if self._connected:
            return (
                "no session: whoever listens there hung up; is that the server's port for containers "
                "(containers.listen, 7000 unless it is set)? clients have others"
            )
        return "no connection: nobody listens there; does shivad run, and is that its port for containers?"

    def close(self) -> None:
        """Close at once; unsent answers get LINGER_MS, and batches that wait are not computed any more."""
        if self.session is not None:
            self.session.lost("closed")
        if self._socket is not None and self._monitor is not None:
            self._poller.unregister(self._socket)
            self._poller.unregister(self._monitor)
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
            self._socket.close(linger=LINGER_MS)
        self._socket = self._monitor = self.session = None

    def drain(self, reason: str) -> None:
        """Sign off in good order, if there is a session."""
        if self.session is not None:
            self.session.drain(reason)

    def _open(self, now: float) -> None:
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.RECONNECT_IVL, _NEVER_MS)
        self._socket.setsockopt(zmq.TCP_MAXRT, _UNREACHABLE_MS)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.IPV6, int("[" in self.endpoint))
        self._monitor = self._socket.get_monitor_socket(_NEWS)
        self._connected = False
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._socket.connect(self.endpoint)
        self.session = Session(self._hello, now, shapes_matter=self.model.cut_by_others)

    def _receive(self, session: Session) -> bool:
        """Read a burst of messages; True if there may be more.

        The clock is read after each: reading gives up the interpreter's lock, and a model that takes and keeps it
        would date what was heard to the time before, too long ago when it gives it back.
        """
        assert self._socket is not None
        for _ in range(_BURST):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return False
            was = session.state
            delivery = session.receive([frame.buffer for frame in frames], time.monotonic())
            if isinstance(delivery, Lesson):
                self._teach(delivery)
            elif delivery is not None:
                self._submit(Job(delivery, Reply(session, self._post)))
            elif was is State.HELLO and session.state is State.LIVE:
                log.info("model %s registered with %s at %s", self.model, session.server or "a server", self.endpoint)
                self._told = ""
        return True

    def _flush(self, now: float) -> None:
        assert self.session is not None
        assert self._socket is not None
        while self.session.outbox:
            try:
                self._socket.send_multipart(self.session.outbox[0], zmq.NOBLOCK, copy=False)
            except zmq.ZMQError as e:
                self.session.lost(f"cannot send: {e}")
                return
            self.session.outbox.popleft()
            self.session.sent(now)

    def _close(self, session: Session, end: End, now: float) -> None:
        self.close()
        if session.welcomed is not None and now - session.welcomed > 1.0:
            self._attempts = 0
        if end.outcome is Outcome.REFUSED:
            delay = REFUSED_RETRY_SECONDS
        elif end.outcome is Outcome.DRAINED:
            delay = 0.0
        else:
            delay = min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2**self._attempts)
            self._attempts = min(self._attempts + 1, 16)
        delay *= random.uniform(0.5, 1.0)  # many containers must not come back in step
        self._next_try = now + delay
        self.retired = end.outcome is Outcome.RETIRED
        self._tell(end, delay)

    def _tell(self, end: End, delay: float) -> None:
        where = f"model {self.model}, server {self.endpoint}"
        if end.outcome is Outcome.REFUSED:
            log.error("%s: registration refused: %s (next try in %.0f s)", where, end.reason, delay)
        elif end.outcome is Outcome.LOST:
            # The same news every few seconds helps nobody.
            level = logging.DEBUG if end.reason == self._told else logging.WARNING
            log.log(level, "%s: %s; trying again", where, end.reason)
            self._told = end.reason
        else:
            log.info("%s: session ended: %s", where, end.reason)


class Reply:
    """Where a job's answer goes: one session, not the one after it."""

    def __init__(self, session: Session, post: Callable[[Callable[[], None]], None]) -> None:
        self._session = session
        self._post = post

    @property
    def gone(self) -> bool:
        """Whether the session is over."""
        return self._session.ended is not None

    def answer(self, batch_id: bytes, frames: list[Buffer]) -> None:
        """Pass the answer to the I/O thread."""
        self._post(lambda: self._session.answer(batch_id, frames))

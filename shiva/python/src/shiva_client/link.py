"""One server of a client for threads."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from . import request, silence, wire
from .address import Address
from .backoff import Backoff
from .connection import Call, Connection
from .errors import ClientClosed, ConnectionLost, NotAnswered, RemoteError, Unreachable
from .servers import Settings
from .shared import encode
from .wire import Message

T = TypeVar("T")


class Link:
    """One connection at a time to one server, and the requests on it.

    The connection is made with the first request, and again when it is lost. The link of one of
    several servers connects in a thread of its own, and takes requests only while connected.

    Attributes:
        address: of the current connection, the last one, or the only one; None: there was none
        choose: called for each connection; returns addresses, best first
        drained: the address of a server that was draining, until the next connection
    """

    def __init__(
        self, name: str, address: Address | None, settings: Settings, *,
        checks_live: bool = False, changed: Callable[[], None] | None = None,
    ) -> None:
        """Connect to the first address from ``choose`` that can be reached.

        Args:
            name: for errors
            address: of the server; None: chosen for each connection
            settings: of the client
            checks_live: use a connection only once the server has answered on it
            changed: for one of several servers, called after each attempt to connect
        """  # fmt: skip
        self.name = name
        self._settings, self._checks_live, self._changed = settings, checks_live, changed
        self.address = address
        self.choose: Callable[[], Sequence[Address]] = lambda: []
        self.drained: Address | None = None
        self.why: NotAnswered = Unreachable(f"{name}: the first connection is being made", may_have_run=False)
        self.shown = ""  # the token that new requests are sent with
        self._closed = threading.Event()
        self._retired = False
        self._slots = threading.BoundedSemaphore(settings.in_flight)
        self._sending = threading.Lock()  # held to write a message and to make a connection
        self._backoff = Backoff()  # used only while connecting
        self._lock = threading.Lock()  # guards the following
        self._entering: set[Call[Any]] = set()  # no connection has them, or is just writing them
        self._making = False  # a thread is making a connection
        self._connection: Connection | None = None
        self._leaving: list[Connection] = []

    @property
    def one_of_several(self) -> bool:
        """Whether the server is one of several."""
        return self._changed is not None

    @property
    def up(self) -> bool:
        """Whether it takes requests."""
        connection = self._connection
        return not self._retired and (not self.one_of_several or (connection is not None and not connection.ended))

    @property
    def waiting(self) -> int:
        """How many requests have no answer."""
        connection = self._connection
        sent = connection.waiting if connection else 0
        with self._lock:
            return sent + sum(not call.sent for call in self._entering)

    def send(self, message: Message, then: Callable[[Message], T], timeout: float | None) -> Future[T]:
        """Send a message. The future's result is that of ``then`` for the answer."""
        call = Call(then, self._slots, self.name, timeout)
        with self._lock:
            self._entering.add(call)
        try:
            self._send(message, call, timeout)
        finally:
            with self._lock:
                self._entering.discard(call)
        return call.future

    def _send(self, message: Message, call: Call[Any], timeout: float | None) -> None:
        began = time.monotonic()
        settings, slots = self._settings, self._slots
        pieces = [] if settings.shared_memory else wire.encode(message)
        if not slots.acquire(timeout=call.left()):
            call.settle(call.timed_out(may_have_run=False))
            return
        try:
            if not self._sending.acquire(timeout=-1 if (left := call.left()) is None else left):
                raise call.timed_out(may_have_run=False)
            try:
                # The connection may end before the request is sent. If it brought no answer,
                # _connect raises the reason.
                while True:
                    connection = self._connect(call, began)
                    if request.reduce_timeout(message, timeout, time.monotonic() - began):
                        pieces = wire.encode(message)
                    if settings.shared_memory:
                        pieces, call.parts = encode(message, connection.memory)
                    if connection.send(pieces, call):
                        break
            finally:
                self._sending.release()
        except BaseException as error:
            if not call.sent:
                slots.release()
            if not isinstance(error, NotAnswered):
                raise
            call.settle(error)

    def _connect(self, call: Call[Any], began: float) -> Connection:
        """The connection; made if there is none. The caller holds ``_sending``, and waits since
        began."""
        if last := self._present():
            return last
        if self.one_of_several:
            with self._lock:
                raise Unreachable(self.why.why, may_have_run=False)
        pause = 0.0 if self._closed.is_set() else self._backoff.pause(began, call.until)
        return self._make(pause, min(self._settings.connect_timeout, max(0.001, call.until - time.monotonic())))

    def _present(self) -> Connection | None:
        """The current connection, if any. The end of the last one determines the next pause."""
        with self._lock:
            last = self._connection
            if last and not last.ended:
                return last
            self._connection = None
            if last and last.ended:
                self.why = Unreachable(last.ended.why, may_have_run=False)
        if last and last.ended and last.answered:
            self._backoff.succeeded()
        elif last and last.ended:
            self._backoff.failed(last.ended.why, last.ended.at)
        return None

    def _make(self, pause: float, patience: float) -> Connection:
        """Make a connection after a pause, to the first address that can be reached."""
        self._closed.wait(pause)
        if self._closed.is_set():
            raise ClientClosed(f"the client of {self.name} is closed", may_have_run=False)
        faults = []
        for address in self.choose():
            try:
                connection, token = self._open(address, patience)
            except (OSError, ValueError) as error:
                faults.append((address.unreachable(error), error))
                continue
            with self._lock:
                self._connection, self.shown, self.address, self.drained = connection, token, address, None
            if self._closed.is_set():
                connection.end(ClientClosed, f"the client of {self.name} is closed")
            elif self._retired:
                connection.leave()
            elif self.one_of_several and self._settings.repeatable:
                connection.doubt = partial(self._doubt, connection, address)
            return connection
        why = "; ".join(why for why, _ in faults)
        self._backoff.failed(why, time.monotonic())
        raise Unreachable(why, may_have_run=False) from faults[-1][1]

    def _open(self, address: Address, patience: float) -> tuple[Connection, str]:
        """A connection, and the token that it has shown."""
        connection, token = self._reach(address, patience)
        if self._settings.shared_memory:
            connection.share(self._settings.shared_memory, patience)
        return connection, token

    def _reach(self, address: Address, patience: float) -> tuple[Connection, str]:
        """A connection that shares no memory yet."""
        connection = Connection(address.connect(patience), str(address), self._settings.max_message)
        if token := self._settings.token.read():
            connection.introduce(token, patience)
        if self._checks_live:
            connection.check_live(patience)
        return connection, token

    def _doubt(self, connection: Connection, address: Address) -> None:
        """Check whether a server that does not answer is alive."""
        threading.Thread(target=self._ask, args=(connection, address), name=f"shiva {address}", daemon=True).start()

    def _ask(self, connection: Connection, address: Address) -> None:
        try:
            self._reach(address, silence.CHECK_TIMEOUT)[0].hang_up()
        except (OSError, ValueError) as error:
            if isinstance(error.__cause__, RemoteError):
                return  # an error is an answer, too
            if why := connection.silence.error(address, error):
                connection.end(ConnectionLost, why)

    def wake(self) -> None:
        """Start to connect to one of several servers, unless connected or already connecting."""
        with self._lock:
            if self._making or self._retired or (self._connection and not self._connection.ended):
                return
            self._making = True
        threading.Thread(target=self._make_in_background, name=f"shiva {self.name}", daemon=True).start()

    def _make_in_background(self) -> None:
        try:
            if not self._present():
                self._make(self._backoff.pause(time.monotonic(), math.inf), self._settings.connect_timeout)
        except NotAnswered as error:
            with self._lock:
                self.why = error
        finally:
            with self._lock:
                self._making = False
            if self._changed:
                self._changed()

    def renew(self, refused: str) -> bool:
        """Whether there is a token other than one that the server no longer accepts.

        A connection that has not shown that token ends when all requests sent on it are answered.
        """
        token = self._settings.token.read()
        if token != self.shown:
            self.leave()
            self.shown = token
        return token != refused

    def leave(self, *, drained: bool = False) -> None:
        """Send nothing more on the connection, which ends when its requests are answered."""
        with self._lock:
            last, self._connection = self._connection, None
            if drained:
                self.drained = self.address
                self.why = Unreachable(f"{self.name}: the server is shutting down", may_have_run=False)
            if last:
                self._leaving = [one for one in self._leaving if not one.ended] + [last]
        if last:
            last.leave()

    def retire(self) -> None:
        """Take no more requests, since the address is no longer a server's."""
        self._retired = True
        self.leave()

    @property
    def over(self) -> bool:
        """Whether nothing of a retired link is in use any more."""
        with self._lock:
            return not self._making and all(one.ended for one in self._leaving)

    def close(self) -> None:
        """End the connection. Requests in flight, and those that wait to be sent, fail."""
        self._closed.set()
        with self._lock:
            connections = self._leaving + ([self._connection] if self._connection else [])
        for connection in connections:
            connection.end(ClientClosed, f"the client of {self.name} was closed")
            if threading.current_thread() is not connection.reader:
                connection.reader.join()

    def hang_up(self) -> None:
        """End the reader of a client that was not closed."""
        if (connection := self._connection) and not connection.ended:
            connection.hang_up()

    def forked(self) -> None:
        """Give up the connections in the child of a fork: they are the parent's."""
        for connection in [*self._leaving, self._connection]:
            if connection:
                connection.forked()

"""A client for threads."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from . import wire
from .address import Address
from .backoff import Backoff
from .connection import Call, Connection
from .errors import ClientClosed, NotAnswered, Unauthenticated, Unreachable
from .request import Answer, question
from .shared import encode, note_names, unnamed
from .tls import TLS
from .token import Token
from .wire import Message

if TYPE_CHECKING:
    from .frames import Keep
    from .stream import Stream

T = TypeVar("T")


class Client:
    """Asks one server over one connection, which any number of threads share: it is pipelined.

    The connection is made with the first request, and anew when it was lost. A request that was
    sent on a connection that is lost fails, since only its sender knows whether it may run twice;
    NotAnswered.may_have_run tells.

        with Client("localhost") as client:
            answer = client.infer("digits", image)
            print(answer["label"])
    """

    def __init__(
        self, host: str = "localhost", port: int | None = None, *,
        connect_timeout: float = 10, in_flight: int = 128, max_message: int = 1 << 30, shared_memory: int = 0,
        tls: TLS | None = None,
        token: str | None = None,
    ) -> None:
        """Use the server at host: "host:port", "tls://host:port", or "unix:/path" on this machine.

        Args:
            host: name or address
            port: 6174 if neither says one
            connect_timeout: in seconds
            in_flight: how many requests may be unanswered at once; more wait in ``submit``. Servers
                allow 256.
            max_message: the largest answer that is read, in bytes
            shared_memory: bytes of memory to share with a server on this machine. Large tensors are
                left there instead of sent.
            tls: the settings of TLS for a server at "tls://host:port"; None: ``TLS()``
            token: shows the server who the client is; None: ``$SHIVA_TOKEN``, else the file
                ``$SHIVA_TOKEN_FILE``, which is read again for each connection, and when the server
                takes its token no longer
        """  # fmt: skip
        if in_flight < 1:
            raise ValueError(f"in_flight is {in_flight}, it must be at least 1")
        self._address = Address.parse(host, port, tls)
        self._name = str(self._address)
        self._connect_timeout = connect_timeout
        self._max_message = max_message
        self._in_flight = in_flight
        self._shared_memory = shared_memory
        self._token = Token(token)
        self._names: dict[str, list[str]] = {}  # inputs by model, for shared memory
        self._begin()
        _clients.add(self)

    def _begin(self) -> None:
        """Begin without a connection."""
        self._closed = threading.Event()
        self._slots = threading.BoundedSemaphore(self._in_flight)
        self._sending = threading.Lock()  # held to write a message and to make a connection
        self._backoff = Backoff()  # guarded by _sending
        self._lock = threading.Lock()  # guards the following
        self._connection: Connection | None = None
        self._shown = ""  # the token that new requests are asked with
        self._leaving: list[Connection] = []

    def infer(
        self, model: str, *inputs: Any, timeout: float | None = None, priority: int | None = None,
        id: Any = None, parameters: dict[str, Any] | None = None, **metadata: Any,
    ) -> Answer:
        """Ask a model and wait for its outputs.

        Args:
            model: a model, "model/version", or an application
            inputs: arrays in the order of the model's inputs, or one mapping from their names.
                Texts need names.
            timeout: deadline of the request, in seconds; None: the server's default
            priority: 0, the first, to 9
            id: of the request; feedback names it
            parameters: for the model
            metadata: other keys of the request's metadata, such as ``user``

        Raises:
            RemoteError: one of its classes, if the server answers with an error
            NotAnswered: one of its classes, if there is no answer
        """  # fmt: skip
        refused = self._shown
        while True:
            try:
                return self.submit(
                    model, *inputs, timeout=timeout, priority=priority, id=id, parameters=parameters, **metadata
                ).result()
            except Unauthenticated:
                if not self._renew(refused):
                    raise
                refused = self._shown

    def submit(
        self, model: str, *inputs: Any, timeout: float | None = None, priority: int | None = None,
        id: Any = None, parameters: dict[str, Any] | None = None, **metadata: Any,
    ) -> Future[Answer]:
        """Ask a model as ``infer`` does, but wait only while too many requests are in flight.

        The arrays may be used again when it returns. The future raises what ``infer`` raises. Its
        callbacks run in the thread that reads the connection, so they must not wait for other
        answers of this client.
        """  # fmt: skip
        metadata |= {"priority": priority, "id": id, "parameters": parameters}
        message = question(model, inputs, timeout=timeout, metadata=metadata)
        if self._shared_memory and (describe := unnamed(message, self._names)):
            note_names(message, self.request(describe, timeout=timeout).result(), self._names)
        return self._send(message, self._answer, timeout)

    def _answer(self, message: Message) -> Answer:
        try:
            return Answer(message)
        except Unauthenticated:
            self._renew(self._shown)
            raise

    def _renew(self, refused: str) -> bool:
        """Whether there is another token than one that the server takes no longer.

        A connection that has not shown that one ends when all that was sent on it is answered.
        """
        token = self._token.read()
        with self._lock:
            last = self._connection
            if last and token != self._shown:
                self._connection, self._shown = None, token
                self._leaving = [one for one in self._leaving if not one.ended] + [last]
                last.leave()
        return token != refused

    def request(self, message: Message, *, timeout: float | None = None) -> Future[Message]:
        """Send a message as it is, and wait for its answer. The server is not told the timeout.

        The answer is not looked at, so that it may be an error.
        """
        return self._send(message, lambda answer: answer, timeout)

    def stream(self, model: str, name: str, *, keep: Keep = "latest", timeout: float | None = None) -> Stream:
        """A stream of frames, such as a camera's, on a connection of its own. See ``Stream``."""
        from .stream import Stream

        client = Client(
            self._name,
            tls=self._address.tls,
            connect_timeout=self._connect_timeout,
            in_flight=self._in_flight,
            max_message=self._max_message,
            shared_memory=self._shared_memory,
            token="",
        )
        client._token = self._token
        return Stream(client, model, name, keep=keep, timeout=timeout)

    def close(self) -> None:
        """End the connection. Requests in flight, and those that wait to be sent, fail."""
        self._closed.set()
        with self._lock:
            connections = self._leaving + ([self._connection] if self._connection else [])
        for connection in connections:
            connection.end(ClientClosed, f"the client of {self._name} was closed")
            if threading.current_thread() is not connection.reader:
                connection.reader.join()

    def __enter__(self) -> Client:
        """The client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def __del__(self) -> None:
        """Let the reader of a client that nobody closed end."""
        if (connection := getattr(self, "_connection", None)) and not connection.ended:
            connection.hang_up()

    def _send(self, message: Message, then: Callable[[Message], T], timeout: float | None) -> Future[T]:
        """Send a message. The future has what ``then`` makes of the answer."""
        began = time.monotonic()
        pieces = [] if self._shared_memory else wire.encode(message)
        slots = self._slots
        call = Call(then, slots, self._name, timeout)
        if not slots.acquire(timeout=call.left()):
            call.settle(call.timed_out(may_have_run=False))
            return call.future
        try:
            if not self._sending.acquire(timeout=-1 if (left := call.left()) is None else left):
                raise call.timed_out(may_have_run=False)
            try:
                # The connection may end before the request is sent. If it has answered nothing,
                # _connect raises the reason.
                while True:
                    connection = self._connect(call, began)
                    if self._shared_memory:
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
        return call.future

    def _connect(self, call: Call[Any], began: float) -> Connection:
        """The connection, made if need be. The caller holds ``_sending``, and waits since began."""
        with self._lock:
            last = self._connection
            if last and not last.ended:
                return last
            self._connection = None
        if last and last.ended and last.answered:
            self._backoff.succeeded()
        elif last and last.ended:
            self._backoff.failed(last.ended.why, last.ended.at)
        if not self._closed.is_set():
            self._closed.wait(self._backoff.pause(began, call.until))
        if self._closed.is_set():
            raise ClientClosed(f"the client of {self._name} is closed", may_have_run=False)
        try:
            patience = min(self._connect_timeout, max(0.001, call.until - time.monotonic()))
            sock = self._address.connect(patience)
        except (OSError, ValueError) as error:
            why = self._address.unreachable(error)
            self._backoff.failed(why, time.monotonic())
            raise Unreachable(why, may_have_run=False) from error
        connection = Connection(sock, self._name, self._max_message)
        if token := self._token.read():
            connection.introduce(token, patience)
        if self._shared_memory:
            connection.share(self._shared_memory, patience)
        with self._lock:
            self._connection, self._shown = connection, token
        if self._closed.is_set():
            connection.end(ClientClosed, f"the client of {self._name} is closed")
        return connection

    def _forked(self) -> None:
        """In the child of a fork, begin anew: the connection and its reader are the parent's."""
        connections, closed = [*self._leaving, self._connection], self._closed.is_set()
        self._begin()
        if closed:
            self._closed.set()
        for connection in connections:
            if connection:
                connection.forked()


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

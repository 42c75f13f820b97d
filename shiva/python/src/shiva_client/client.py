"""A client for threads."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import wire
from .errors import ClientClosed, ConnectionLost, NotAnswered, TimedOut, Unreachable
from .request import Answer, question
from .wire import Message

if TYPE_CHECKING:
    from .stream import Keep, Stream

DEFAULT_PORT = 6174
GRACE = 1.0  # seconds that the server's own word about a deadline may take


def address(host: str, port: int | None) -> tuple[str, int]:
    """Host and port of what a user gave: "host", "host:port", "[::1]:port"."""
    if (port is None and host.count(":") == 1) or (host.startswith("[") and "]:" in host):
        host, _, digits = host.rpartition(":")
        if not digits.isdecimal():
            raise ValueError(f"expected a port behind the colon, got {digits!r}")
        port = int(digits)
    return host.strip("[]"), port or DEFAULT_PORT


class Client:
    """Asks one server over one connection. Any number of threads may use it at once: requests are pipelined.

    The connection is made with the first request, and anew when it was lost. A request that was sent on a connection
    that is lost fails, since only its sender knows whether it may run twice; NotAnswered.may_have_run tells.

        with Client("localhost") as client:
            answer = client.infer("digits", image)
            print(answer["label"])
    """

    def __init__(
        self, host: str = "localhost", port: int | None = None, *,
        connect_timeout: float = 10, in_flight: int = 128, max_message: int = 1 << 30,
    ) -> None:
        """Ask the server at host, which may be "host:port".

        Args:
            host: name or address
            port: 6174 if neither says one
            connect_timeout: in seconds
            in_flight: how many requests may be unanswered at a time; more wait in ``submit``. Servers allow 256.
            max_message: the largest answer that is read, in bytes
        """  # fmt: skip
        if in_flight < 1:
            raise ValueError(f"in_flight is {in_flight}, it must be at least 1")
        self._address = address(host, port)
        self._connect_timeout = connect_timeout
        self._max_message = max_message
        self._slots = threading.BoundedSemaphore(in_flight)
        self._in_flight = in_flight
        self._sending = threading.Lock()  # held while a message is written, and while a connection is made
        self._lock = threading.Lock()  # guards what follows
        self._connection: _Connection | None = None
        self._closed = False
        self._failures = 0
        self._failed_at = 0.0

    def infer(
        self, model: str, *inputs: Any, timeout: float | None = None, priority: int | None = None,
        id: Any = None, parameters: dict[str, Any] | None = None, **metadata: Any,
    ) -> Answer:
        """Ask a model and wait for its outputs.

        Args:
            model: a model, "model/version", or an application
            inputs: arrays in the order of the model's inputs, or one mapping from their names; texts only by name
            timeout: deadline of the request, in seconds; None: the server's default
            priority: 0, the first, to 9
            id: of the request; feedback names it
            parameters: for the model
            metadata: other keys of the request's metadata, such as ``user``

        Raises:
            RemoteError: one of its classes, as the server says
            NotAnswered: one of its classes, if it does not
        """  # fmt: skip
        future = self.submit(
            model, *inputs, timeout=timeout, priority=priority, id=id, parameters=parameters, **metadata
        )
        try:
            return future.result(None if timeout is None else timeout + GRACE)
        except FutureTimeout:
            future.cancel()
            raise TimedOut(f"no answer from {self._name()} within {timeout} s", may_have_run=True) from None

    def submit(
        self, model: str, *inputs: Any, timeout: float | None = None, priority: int | None = None,
        id: Any = None, parameters: dict[str, Any] | None = None, **metadata: Any,
    ) -> Future[Answer]:
        """Ask a model as ``infer`` does, but wait only while too many requests are in flight."""  # fmt: skip
        metadata |= {"priority": priority, "id": id, "parameters": parameters}
        return self._send(question(model, inputs, timeout=timeout, metadata=metadata), Answer)

    def request(self, message: Message) -> Future[Message]:
        """Send a message as it is. The answer is not looked at, so that it may be an error."""
        return self._send(message, lambda answer: answer)

    def stream(self, model: str, name: str, *, keep: Keep = "latest", timeout: float | None = None) -> Stream:
        """A stream of frames, such as a camera's, on a connection of its own. See ``Stream``."""
        from .stream import Stream

        client = Client(
            *self._address,
            connect_timeout=self._connect_timeout,
            in_flight=self._in_flight,
            max_message=self._max_message,
        )
        return Stream(client, model, name, keep=keep, timeout=timeout)

    def close(self) -> None:
        """End the connection. Requests in flight fail."""
        with self._lock:
            self._closed = True
            connection = self._connection
        if connection:
            connection.end(ClientClosed(f"the client of {self._name()} was closed", may_have_run=True))
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

    def _name(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"

    def _send(self, message: Message, then: Any) -> Future[Any]:
        pieces = wire.encode(message)
        self._slots.acquire()
        future: Future[Any] = Future()
        call = _Call(future, then, self._slots)
        try:
            with self._sending:
                while not self._connect().send(pieces, call):
                    pass  # it ended between the two
        except BaseException as error:
            self._slots.release()
            if not isinstance(error, NotAnswered):
                raise
            future.set_exception(error)
        return future

    def _connect(self) -> _Connection:
        """The connection, which is made if there is none. The caller holds ``_sending``."""
        pause = 0.0
        with self._lock:
            if self._closed:
                raise ClientClosed(f"the client of {self._name()} is closed", may_have_run=False)
            if self._connection and not self._connection.ended:
                return self._connection
            if self._connection and self._connection.answered:
                self._failures = 0
            if self._failures:
                pause = self._failed_at + min(0.05 * 2 ** min(self._failures, 10), 5.0) - time.monotonic()
        time.sleep(max(0.0, pause))
        try:
            sock = socket.create_connection(self._address, self._connect_timeout)
        except OSError as error:
            self._failures += 1
            self._failed_at = time.monotonic()
            raise Unreachable(f"{self._name()}: {error}", may_have_run=False) from error
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(sock, self._name(), self._max_message)
        with self._lock:
            self._failures += 1  # until it brings an answer
            self._failed_at = time.monotonic()
            self._connection = connection
            closed = self._closed
        if closed:
            connection.end(ClientClosed(f"the client of {self._name()} is closed", may_have_run=False))
        return connection


class _Call:
    """A request that was sent."""

    def __init__(self, future: Future[Any], then: Any, slots: threading.BoundedSemaphore) -> None:
        self._future, self._then, self._slots = future, then, slots

    def finish(self, answer: Message | None, error: BaseException | None) -> None:
        """Give the answer to who waits, who may have gone."""
        self._slots.release()
        if not self._future.set_running_or_notify_cancel():
            return
        try:
            if error is None:
                self._future.set_result(self._then(answer))
                return
        except Exception as failure:
            error = failure
        assert error is not None
        with suppress(InvalidStateError):
            self._future.set_exception(error)


class _Connection:
    """One connection, and the thread that reads it."""

    def __init__(self, sock: socket.socket, name: str, max_message: int) -> None:
        self._sock, self._name = sock, name
        self._lock = threading.Lock()
        self._calls: deque[_Call] = deque()  # in the order of their requests, which is that of the answers
        self.ended: NotAnswered | None = None
        self.answered = False
        self._decoder = wire.Decoder(max_message)
        self.reader = threading.Thread(target=self._read, name=f"shiva {name}", daemon=True)
        self.reader.start()

    def send(self, pieces: list[bytes | memoryview], call: _Call) -> bool:
        """Send a request, whose call is finished from here on. False: the connection has ended before."""
        with self._lock:
            if self.ended:
                return False
            self._calls.append(call)
        try:
            _send_all(self._sock, pieces)
        except OSError as error:
            self.end(ConnectionLost(f"{self._name}: {error}", may_have_run=True))
        return True

    def _read(self) -> None:
        why = "the server closed the connection"
        try:
            while n := self._sock.recv_into(self._decoder.buffer()):
                for message in self._decoder.advance(n):
                    with self._lock:
                        if not self._calls:
                            raise wire.ProtocolError(f"an answer to no request: {message.namespace} {message.metadata}")
                        call = self._calls.popleft()
                        self.answered = True
                    call.finish(message, None)
        except (OSError, wire.ProtocolError, MemoryError) as error:
            why = str(error)
        self.end(ConnectionLost(f"{self._name}: {why}", may_have_run=True))
        self._sock.close()

    def end(self, why: NotAnswered) -> None:
        """Fail what is in flight. Only the first reason counts."""
        with self._lock:
            if self.ended:
                return
            self.ended = why
            calls, self._calls = self._calls, deque()
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes the reader, which closes it
        for call in calls:
            call.finish(None, why)


def _send_all(sock: socket.socket, pieces: list[bytes | memoryview]) -> None:
    """Write all pieces, in as few writes as the kernel takes."""
    left = [memoryview(piece) for piece in pieces if len(piece)]
    while left:
        n = sock.sendmsg(left[:1024])
        while left and n >= len(left[0]):
            n -= len(left.pop(0))
        if n:
            left[0] = left[0][n:]

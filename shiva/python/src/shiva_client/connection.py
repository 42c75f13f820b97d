"""One connection for threads, and the requests on it."""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from . import wire
from .errors import ConnectionLost, NotAnswered, ProtocolError, RemoteError, ShivaError, TimedOut, raise_for
from .shared import Memory, Parts
from .silence import Silence
from .tls import Encrypted, lost
from .token import introduction
from .wire import Message

log = logging.getLogger("shiva_client")

GRACE = 1.0  # seconds to wait for the server's own answer about a deadline
FINAL_READ_TIME = 1.0  # seconds to read the last answers of a server that hangs up
NOT_LIVE = "the server accepts connections but does not answer !live"
TICK = 0.5  # seconds between two checks of the deadlines in flight

# A host that is down sends nothing: without these options the kernel waits for 15 minutes.
OPTIONS = [
    (level, getattr(socket, name), value)
    for level, name, value in (
        (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 20),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 10),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 4),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 60_000),
    )
    if hasattr(socket, name)  # not every system has all of them
]

T = TypeVar("T")


def configure(sock: socket.socket | Encrypted) -> None:
    """Set the options of a new connection."""
    if sock.family != getattr(socket, "AF_UNIX", None):  # its other end is on this machine
        for option in OPTIONS:
            sock.setsockopt(*option)


def unsolicited(message: Message) -> ProtocolError:
    """The error of a message that no call waits for."""
    return ProtocolError(f"received a message that answers no request: {message.namespace} {message.metadata}")


class Call(Generic[T]):
    """A request and the future of its answer."""

    def __init__(
        self, then: Callable[[Message], T], slots: threading.Semaphore, name: str, timeout: float | None
    ) -> None:
        self.future: Future[T] = Future()
        self.until = math.inf if timeout is None else time.monotonic() + timeout + GRACE
        self.sent = False  # whether a connection has it, which then finishes it
        self._then, self._slots, self._name, self._timeout = then, slots, name, timeout
        self._once = threading.Lock()
        self.parts: Parts | None = None  # of the connection's shared memory

    def left(self) -> float | None:
        """Seconds until its deadline, or as long as a thread can wait."""
        return None if self.until == math.inf else max(0.0, min(self.until - time.monotonic(), threading.TIMEOUT_MAX))

    def timed_out(self, *, may_have_run: bool) -> TimedOut:
        """The error of a request whose deadline has passed."""
        return TimedOut(f"no answer from {self._name} within {self._timeout} s", may_have_run=may_have_run)

    def finish(self, result: Message | Exception) -> None:
        """Take the answer or error; the connection is done with the call."""
        self._slots.release()
        self.settle(result)

    def settle(self, result: Message | Exception) -> None:
        """Resolve the future, which may be cancelled. Later results are dropped."""
        if not self._once.acquire(blocking=False) or not self.future.set_running_or_notify_cancel():
            return
        try:
            if isinstance(result, Exception):
                raise result
            answer = self._then(result)
        except Exception as error:
            resolve = partial(self.future.set_exception, error)
        else:
            resolve = partial(self.future.set_result, answer)
        try:
            resolve()
        except BaseException as error:  # of a callback, such as SystemExit: this may be the reader
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise
            log.exception("a callback of a request to %s failed", self._name)


class End(NamedTuple):
    """Why a connection ended, and when."""

    why: str
    at: float


class Connection:
    """One connection, and the thread that reads it."""

    def __init__(self, sock: socket.socket | Encrypted, name: str, max_message: int) -> None:
        # System calls return after this timeout, so that deadlines can be checked.
        sock.settimeout(TICK)
        configure(sock)
        self._sock, self._name = sock, name
        self._lock = threading.Lock()
        self._writing = threading.Lock()  # held to send a request
        self._calls: deque[Call[Any]] = deque()  # answers have the order of their requests
        self._look = 0.0  # time of the next check of deadlines
        self.ended: End | None = None
        self._leaves = False  # it ends when all requests sent on it are answered
        self.answered = False
        self.memory: Memory | None = None  # shared with the server
        self.silence = Silence()
        # Called when no answer has come for too long; None: no check.
        self.doubt: Callable[[], None] | None = None
        self._decoder = wire.Decoder(max_message)
        self.reader = threading.Thread(target=self._read, name=f"shiva {name}", daemon=True)
        self.reader.start()

    def introduce(self, token: str, patience: float) -> None:
        """Show the server a token, before any other use of the connection.

        Does not wait for the answer.
        """
        call: Call[Message] = Call(lambda answer: answer, threading.Semaphore(0), self._name, patience)
        self.send(wire.encode(introduction(token)), call)

    def check_live(self, patience: float) -> None:
        """Wait until the server answers, before requests use the connection.

        OSError if it does not, or answers with a retryable error.
        """
        call: Call[Message] = Call(lambda answer: answer, threading.Semaphore(0), self._name, patience)
        try:
            self.send(wire.encode(Message("!live")), call)
            raise_for(call.future.result(patience))
        except RemoteError as error:
            if error.retryable:
                self.end(ConnectionLost, str(error))
                raise OSError(str(error)) from error
        except (NotAnswered, FutureTimeout, TimeoutError) as error:
            self.end(ConnectionLost, NOT_LIVE)
            raise OSError(f"{NOT_LIVE} ({str(error) or 'timed out'})") from error

    def share(self, size: int, patience: float) -> None:
        """Share memory with the server, before requests use the connection.

        If the server refuses, the connection works without it, and a warning tells why.
        """
        try:
            memory = Memory(size)
        except OSError as error:
            warnings.warn(f"{self._name}: no shared memory: {error}", RuntimeWarning, stacklevel=2)
            return
        call: Call[Message] = Call(lambda answer: answer, threading.Semaphore(0), self._name, patience)
        try:
            if self.send(wire.encode(memory.registration()), call):
                raise_for(call.future.result())
                self.memory = memory
        except RemoteError as error:
            warnings.warn(f"{self._name}: no shared memory: {error}", RuntimeWarning, stacklevel=2)
        except NotAnswered:
            pass  # the connection has ended, or the server is late
        finally:
            memory.unlink()

    @property
    def waiting(self) -> int:
        """How many requests have no answer."""
        return len(self._calls)

    def send(self, pieces: list[bytes | memoryview], call: Call[Any]) -> bool:
        """Send a request, whose call the connection then finishes. False: the connection has
        ended."""
        if not self._writing.acquire(timeout=-1 if (left := call.left()) is None else left):
            raise call.timed_out(may_have_run=False)
        try:
            return self._send(pieces, call)
        finally:
            self._writing.release()

    def _send(self, pieces: list[bytes | memoryview], call: Call[Any]) -> bool:
        try:
            with self._lock:
                if self.ended or self._leaves:
                    return False
                if not self._calls:
                    self.silence.ends()
                self._calls.append(call)
                call.sent = True
            self._write(pieces, call)
        except OSError as error:
            if isinstance(error, ConnectionError) and threading.current_thread() is not self.reader:
                self.reader.join(FINAL_READ_TIME)  # the reader may get the reason from the server
            self.end(ConnectionLost, f"{self._name}: {lost(self._name, error, self.answered)}")
        except BaseException:  # from a signal: part of the message may be written
            self.end(ConnectionLost, f"{self._name}: a thread was interrupted while it sent a request")
            raise
        return True

    def _write(self, pieces: list[bytes | memoryview], call: Call[Any]) -> None:
        """Write all pieces, in as few writes as the kernel permits."""
        left = [memoryview(piece) for piece in pieces if len(piece)]
        while left:
            try:
                n = self._sock.sendmsg(left[:1024]) if hasattr(self._sock, "sendmsg") else self._sock.send(left[0])
            except TimeoutError as error:
                if error.errno is None and time.monotonic() < call.until:
                    continue
                call.settle(call.timed_out(may_have_run=True))
                raise OSError("the server reads nothing") from error
            while left and n >= len(left[0]):
                n -= len(left.pop(0))
            if n:
                left[0] = left[0][n:]

    def _read(self) -> None:
        why: Exception | None = None
        try:
            while True:
                try:
                    n = self._sock.recv_into(self._decoder.buffer())
                except TimeoutError as error:
                    if error.errno is not None:
                        raise
                    self._expire()
                    continue
                if not n:
                    break
                for message in self._decoder.advance(n):
                    self._answer(message)
                if time.monotonic() >= self._look:
                    self._expire()
        except Exception as error:  # any exception: nothing else would fail the calls
            why = error
        self.end(ConnectionLost, f"{self._name}: {lost(self._name, why, self.answered)}")
        self._sock.close()

    def _answer(self, message: Message) -> None:
        with self._lock:
            call = self._calls.popleft() if self._calls else None
            last = self._leaves and not self._calls
        if call is None:
            raise unsolicited(message)
        self.answered = True
        self.silence.ends()
        whole = self.memory.refused(message, call.parts) if self.memory and call.parts else None
        if self.memory and whole and not call.future.done():
            # This thread must not wait to write: the server may wait until it reads.
            again = partial(self._send_again, self.memory, call, whole)
            threading.Thread(target=again, name=f"shiva {self._name}", daemon=True).start()
        else:
            call.finish(self.memory.collect(message, call.parts) if self.memory and call.parts else message)
        if last:
            self.hang_up()

    def _send_again(self, memory: Memory, call: Call[Any], whole: Message) -> None:
        """Send the tensors of a request whose memory the server could not use."""
        parts, call.parts = call.parts, None
        try:
            if not self.send(wire.encode(whole), call):
                raise ConnectionLost(f"{self._name}: the connection has ended", may_have_run=False)
        except ShivaError as error:
            call.finish(error)
        finally:
            if parts:
                memory.give_back(parts)

    def _expire(self) -> None:
        """Time out late calls. They stay queued, since their answers may still arrive."""
        now = time.monotonic()
        self._look = now + TICK
        with self._lock:
            late = [call for call in self._calls if call.until <= now]
        for call in late:
            call.settle(call.timed_out(may_have_run=True))
        if self.doubt and self._calls and self.silence.doubtful():
            self.doubt()

    def end(self, kind: type[NotAnswered], why: str) -> None:
        """Fail the requests in flight. Only the first reason counts."""
        with self._lock:
            if self.ended:
                return
            self.ended = End(why, time.monotonic())
            calls, self._calls = self._calls, deque()
        self.hang_up()
        for call in calls:
            call.finish(kind(why, may_have_run=True))

    def leave(self) -> None:
        """Send nothing more, and end when all requests sent are answered."""
        with self._lock:
            self._leaves = True
            idle = not self._calls
        if idle:
            self.hang_up()

    def hang_up(self) -> None:
        """Wake the reader, which ends the connection and closes the socket."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def forked(self) -> None:
        """Close the parent's connection in a forked child, without sending anything."""
        self._sock.close()
        for call in self._calls:
            call.settle(ConnectionLost(f"{self._name}: the process was forked", may_have_run=True))

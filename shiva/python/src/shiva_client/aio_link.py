"""One server of a client for asyncio."""

from __future__ import annotations

import asyncio
import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast

from . import silence, wire
from .address import Address
from .backoff import Backoff
from .connection import GRACE, NOT_LIVE, End, configure, unsolicited
from .errors import (
    ClientClosed,
    ConnectionLost,
    NotAnswered,
    ProtocolError,
    RemoteError,
    TimedOut,
    Unreachable,
    raise_for,
)
from .request import reduce_timeout
from .servers import Settings
from .shared import Memory, Parts, encode
from .tls import lost
from .token import introduction
from .wire import Message

T = TypeVar("T")


class AsyncLink:
    """One connection at a time to one server. In all else it works like ``Link``."""

    def __init__(
        self, name: str, address: Address | None, settings: Settings, *,
        checks_live: bool = False, changed: Callable[[], None] | None = None,
    ) -> None:
        """See ``Link``."""  # fmt: skip
        self.name = name
        self._settings, self._checks_live, self._changed = settings, checks_live, changed
        self.address = address
        self.choose: Callable[[], Sequence[Address]] = lambda: []
        self.drained: Address | None = None
        self.why: NotAnswered = Unreachable(f"{name}: the first connection is being made", may_have_run=False)
        self.shown = ""  # the token that new requests are sent with
        self._closed = asyncio.Event()
        self._retired = False
        self._slots = asyncio.Semaphore(settings.in_flight)
        self._connecting = asyncio.Lock()
        self._backoff = Backoff()  # used only while connecting
        self._entering: set[Call[Any]] = set()  # those that no connection has
        self._making: asyncio.Task[None] | None = None
        self._watching: set[asyncio.Task[None]] = set()
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
        return len(self._entering) + (self._connection.waiting if self._connection else 0)

    async def send(self, message: Message, then: Callable[[Message], T], timeout: float | None) -> asyncio.Future[T]:
        """Send a message. The future's result is that of ``then`` for the answer."""
        loop = asyncio.get_running_loop()
        until = math.inf if timeout is None else time.monotonic() + timeout + GRACE
        late = f"no answer from {self.name} within {timeout} s"
        call = Call(then, self._slots)
        pieces = [] if self._settings.shared_memory else wire.encode(message)
        sending = self._write(message, pieces, call, timeout, until)
        self._entering.add(call)
        try:
            await (sending if timeout is None else asyncio.wait_for(sending, timeout + GRACE))
        except NotAnswered as error:
            call.settle(error)
        except asyncio.TimeoutError:
            call.settle(TimedOut(late, may_have_run=False))
        else:
            if timeout is not None:
                left = until - time.monotonic()
                timer = loop.call_later(left, lambda: call.settle(TimedOut(late, may_have_run=True)))
                call.future.add_done_callback(lambda _: timer.cancel())
        finally:
            self._entering.discard(call)
        return call.future

    async def _write(
        self, message: Message, pieces: list[bytes | memoryview], call: Call[Any], timeout: float | None, until: float
    ) -> None:
        """Pass a request to a connection, which then finishes its call."""
        began = time.monotonic()
        await self._slots.acquire()
        try:
            while True:
                connection = await self._connect(began, until)
                await connection.writable.wait()
                if reduce_timeout(message, timeout, time.monotonic() - began):
                    pieces = wire.encode(message)
                if self._settings.shared_memory:
                    pieces, call.parts = encode(message, connection.memory)
                if connection.send(pieces, call):
                    self._entering.discard(call)
                    return
        except BaseException:
            self._slots.release()
            raise

    async def _connect(self, began: float, until: float) -> Connection:
        """The connection; made if there is none."""
        async with self._connecting:
            if last := self._present():
                return last
            if self.one_of_several:
                raise Unreachable(self.why.why, may_have_run=False)
            return await self._make(0.0 if self._closed.is_set() else self._backoff.pause(began, until))

    def _present(self) -> Connection | None:
        """The current connection, if any. The end of the last one determines the next pause."""
        last = self._connection
        if last and not last.ended:
            return last
        self._connection = None
        if last and last.ended:
            self.why = Unreachable(last.ended.why, may_have_run=False)
            if last.answered:
                self._backoff.succeeded()
            else:
                self._backoff.failed(last.ended.why, last.ended.at)
        return None

    async def _make(self, pause: float) -> Connection:
        """Make a connection after a pause, to the first address that can be reached."""
        if pause:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._closed.wait(), pause)
        if self._closed.is_set():
            raise ClientClosed(f"the client of {self.name} is closed", may_have_run=False)
        faults = []
        for address in self.choose():
            try:
                connection, token = await self._open(address)
            except (OSError, ValueError, asyncio.TimeoutError) as error:
                faults.append((address.unreachable(error), error))
                continue
            self._connection, self.shown, self.address, self.drained = connection, token, address, None
            if self._closed.is_set():
                connection.end(ClientClosed, f"the client of {self.name} is closed")
            elif self._retired:
                connection.leave()
            elif self.one_of_several and self._settings.repeatable:
                watch = asyncio.create_task(self._watch(connection, address), name=f"shiva {self.name}")
                self._watching.add(watch)
                watch.add_done_callback(self._watching.discard)
            return connection
        why = "; ".join(why for why, _ in faults)
        self._backoff.failed(why, time.monotonic())
        raise Unreachable(why, may_have_run=False) from faults[-1][1]

    async def _open(self, address: Address) -> tuple[Connection, str]:
        """A connection, and the token that it has shown."""
        settings = self._settings
        connection, token = await self._reach(address, settings.connect_timeout)
        try:
            if settings.shared_memory:
                await connection.share(settings.shared_memory, settings.connect_timeout)
        except BaseException:  # such as a cancelled task: nothing else would end the connection
            connection.end(ConnectionLost, f"{address}: the attempt to connect was abandoned")
            raise
        return connection, token

    async def _reach(self, address: Address, patience: float) -> tuple[Connection, str]:
        """A connection that shares no memory yet."""
        made = address.open(lambda: Connection(str(address), self._settings.max_message))
        connection = await asyncio.wait_for(made, patience)
        try:
            if token := self._settings.token.read():
                first: Call[Message] = Call(lambda answer: answer, asyncio.Semaphore(0))
                connection.send(wire.encode(introduction(token)), first)
            if self._checks_live:
                await connection.check_live(patience)
        except BaseException:
            connection.end(ConnectionLost, f"{address}: the attempt to connect was abandoned")
            raise
        return connection, token

    async def _watch(self, connection: Connection, address: Address) -> None:
        """Check that the server is alive whenever it does not answer."""
        while not connection.ended:
            await asyncio.wait([connection.lost], timeout=silence.SILENCE / 4)
            if not connection.waiting or not connection.silence.doubtful():
                continue
            try:
                other, _ = await self._reach(address, silence.CHECK_TIMEOUT)
                other.end(ConnectionLost, f"{address}: it lives")
            except (OSError, ValueError, asyncio.TimeoutError) as error:
                if isinstance(error.__cause__, RemoteError):
                    continue  # an error is an answer, too
                if why := connection.silence.error(address, error):
                    connection.end(ConnectionLost, why)

    def wake(self) -> None:
        """Start to connect to one of several servers, unless connected or already connecting."""
        busy = self._making and not self._making.done()
        if not (busy or self._retired or self._closed.is_set() or (self._connection and not self._connection.ended)):
            self._making = asyncio.create_task(self._make_in_background(), name=f"shiva {self.name}")

    async def _make_in_background(self) -> None:
        try:
            if not self._present():
                await self._make(self._backoff.pause(time.monotonic(), math.inf))
        except NotAnswered as error:
            self.why = error
        finally:
            if self._changed:
                self._changed()

    def renew(self, refused: str) -> bool:
        """Whether there is a token other than the refused one. See ``Link.renew``."""
        token = self._settings.token.read()
        if token != self.shown:
            self.leave()
            self.shown = token
        return token != refused

    def leave(self, *, drained: bool = False) -> None:
        """Send nothing more on the connection, which ends when its requests are answered."""
        last, self._connection = self._connection, None
        if drained:
            self.drained = self.address
            self.why = Unreachable(f"{self.name}: the server is shutting down", may_have_run=False)
        if last:
            self._leaving = [one for one in self._leaving if not one.ended] + [last]
            last.leave()

    def retire(self) -> None:
        """Take no more requests, since the address is no longer a server's."""
        self._retired = True
        self.leave()

    @property
    def over(self) -> bool:
        """Whether nothing of a retired link is in use any more."""
        return not (self._making and not self._making.done()) and all(one.ended for one in self._leaving)

    async def close(self) -> None:
        """End the connection. Requests in flight, and those that wait to be sent, fail."""
        self._closed.set()
        tasks = [*self._watching, *([self._making] if self._making else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for connection in self._leaving + ([self._connection] if self._connection else []):
            connection.end(ClientClosed, f"the client of {self.name} was closed")
            await connection.lost


class Call(Generic[T]):
    """A request, and the future of its answer."""

    def __init__(self, then: Callable[[Message], T], slots: asyncio.Semaphore) -> None:
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._then, self._slots = then, slots
        self.parts: Parts | None = None  # of the connection's shared memory

    def finish(self, result: Message | Exception) -> None:
        """Take the answer or error; the connection is done with the call."""
        self._slots.release()
        self.settle(result)

    def settle(self, result: Message | Exception) -> None:
        """Resolve the future, which may be cancelled. Later results are dropped."""
        if self.future.done():
            return
        try:
            if isinstance(result, Exception):
                raise result
            self.future.set_result(self._then(result))
        except Exception as error:
            self.future.set_exception(error)


class Connection(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, name: str, max_message: int) -> None:
        self.name = name
        self.ended: End | None = None
        self.answered = False
        self.writable = asyncio.Event()
        self._leaves = False  # it ends when all requests sent on it are answered
        self.writable.set()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls: deque[Call[Any]] = deque()
        self.silence = silence.Silence()
        self._decoder = wire.Decoder(max_message)
        self._transport: asyncio.Transport
        self.memory: Memory | None = None  # shared with the server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        configure(transport.get_extra_info("socket"))

    @property
    def waiting(self) -> int:
        """How many requests have no answer."""
        return len(self._calls)

    async def check_live(self, patience: float) -> None:
        """Wait until the server answers, like ``connection.Connection.check_live``."""
        call: Call[Message] = Call(lambda answer: answer, asyncio.Semaphore(0))
        try:
            self.send(wire.encode(Message("!live")), call)
            raise_for(await asyncio.wait_for(call.future, patience))
        except RemoteError as error:
            if error.retryable:
                raise OSError(str(error)) from error
        except (NotAnswered, asyncio.TimeoutError) as error:
            raise OSError(f"{NOT_LIVE} ({str(error) or 'timed out'})") from error

    async def share(self, size: int, patience: float) -> None:
        """Share memory with the server, like ``connection.Connection.share``."""
        try:
            memory = Memory(size)
        except OSError as error:
            warnings.warn(f"{self.name}: no shared memory: {error}", RuntimeWarning, stacklevel=2)
            return
        call: Call[Message] = Call(lambda answer: answer, asyncio.Semaphore(0))
        try:
            if self.send(wire.encode(memory.registration()), call):
                raise_for(await asyncio.wait_for(call.future, patience))
                self.memory = memory
        except RemoteError as error:
            warnings.warn(f"{self.name}: no shared memory: {error}", RuntimeWarning, stacklevel=2)
        except (NotAnswered, asyncio.TimeoutError):
            pass  # the connection has ended, or the server is late
        finally:
            memory.unlink()

    def send(self, pieces: list[bytes | memoryview], call: Call[Any]) -> bool:
        """Send a request, whose call the connection then finishes. False: the connection has
        ended."""
        if self.ended or self._leaves:
            return False
        if not self._calls:
            self.silence.ends()
        self._calls.append(call)
        # Copy what cannot be written at once: the caller may be cancelled and reuse its arrays.
        self._transport.write(b"".join(pieces))
        return True

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.buffer()

    def buffer_updated(self, n: int) -> None:
        if self.ended:
            return
        try:
            for message in self._decoder.advance(n):
                if not self._calls:
                    raise unsolicited(message)
                self.answered = True
                self.silence.ends()
                call = self._calls.popleft()
                whole = self.memory.refused(message, call.parts) if self.memory and call.parts else None
                if self.memory and whole and not call.future.done():
                    self._send_again(self.memory, call, whole)
                else:
                    call.finish(self.memory.collect(message, call.parts) if self.memory and call.parts else message)
                if self._leaves:
                    self.leave()
        except (ProtocolError, MemoryError) as error:
            self.end(ConnectionLost, f"{self.name}: {error}")

    def _send_again(self, memory: Memory, call: Call[Any], whole: Message) -> None:
        """Send the tensors of a request whose memory the server could not use."""
        parts, call.parts = call.parts, None
        try:
            if not self.send(wire.encode(whole), call):
                call.finish(ConnectionLost(f"{self.name}: the connection has ended", may_have_run=False))
        except ProtocolError as error:  # a tensor that only memory can hold
            call.finish(error)
        if parts:
            memory.give_back(parts)

    def connection_lost(self, error: Exception | None) -> None:
        self.end(ConnectionLost, f"{self.name}: {lost(self.name, error, self.answered)}")
        if not self.lost.done():
            self.lost.set_result(None)

    def leave(self) -> None:
        """Send nothing more, and end when all requests sent are answered."""
        self._leaves = True
        if not self._calls:
            self.end(ConnectionLost, f"{self.name}: left")

    def end(self, kind: type[NotAnswered], why: str) -> None:
        """Fail the requests in flight. Only the first reason counts."""
        if self.ended:
            return
        self.ended = End(why, time.monotonic())
        self.writable.set()
        calls, self._calls = self._calls, deque()
        for call in calls:
            call.finish(kind(why, may_have_run=True))
        self._transport.abort()

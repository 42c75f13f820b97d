"""A client for asyncio."""

from __future__ import annotations

import asyncio
import math
import time
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from . import wire
from .address import Address
from .backoff import Backoff
from .connection import GRACE, End, configure
from .errors import (
    ClientClosed,
    ConnectionLost,
    NotAnswered,
    ProtocolError,
    RemoteError,
    TimedOut,
    Unauthenticated,
    Unreachable,
    raise_for,
)
from .request import Answer, question
from .shared import Memory, Parts, encode, note_names, unnamed
from .tls import TLS, lost
from .token import Token, introduction
from .wire import Message

if TYPE_CHECKING:
    from .aio_stream import AsyncStream
    from .frames import Keep

T = TypeVar("T")


class AsyncClient:
    """Asks one server over one connection, from one event loop. Any number of tasks may share it.

    It is as ``Client`` in all else.

        async with AsyncClient("localhost") as client:
            answer = await client.infer("digits", image)
    """

    def __init__(
        self, host: str = "localhost", port: int | None = None, *,
        connect_timeout: float = 10, in_flight: int = 128, max_message: int = 1 << 30, shared_memory: int = 0,
        tls: TLS | None = None,
        token: str | None = None,
    ) -> None:
        """Ask the server at host, which may be "host:port", "tls://host:port" or "unix:/path".

        See ``Client``.
        """  # fmt: skip
        if in_flight < 1:
            raise ValueError(f"in_flight is {in_flight}, it must be at least 1")
        self._address = Address.parse(host, port, tls)
        self._name = str(self._address)
        self._connect_timeout = connect_timeout
        self._max_message = max_message
        self._in_flight = in_flight
        self._shared_memory = shared_memory
        self._names: dict[str, list[str]] = {}  # inputs by model, for shared memory
        self._token = Token(token)
        self._shown = ""  # the token that new requests are asked with
        self._leaving: list[Connection] = []
        self._slots = asyncio.Semaphore(in_flight)
        self._connecting = asyncio.Lock()
        self._connection: Connection | None = None
        self._closed = asyncio.Event()
        self._backoff = Backoff()  # guarded by _connecting
        self._loop: asyncio.AbstractEventLoop | None = None

    async def infer(
        self, model: str, *inputs: Any, timeout: float | None = None, priority: int | None = None,
        id: Any = None, parameters: dict[str, Any] | None = None, **metadata: Any,
    ) -> Answer:
        """Ask a model and wait for its outputs. See ``Client.infer``."""  # fmt: skip
        refused = self._shown
        while True:
            try:
                return await (
                    await self.submit(
                        model, *inputs, timeout=timeout, priority=priority, id=id, parameters=parameters, **metadata
                    )
                )
            except Unauthenticated:
                if not self._renew(refused):
                    raise
                refused = self._shown

    async def submit(
        self, model: str, *inputs: Any, timeout: float | None = None, priority: int | None = None,
        id: Any = None, parameters: dict[str, Any] | None = None, **metadata: Any,
    ) -> asyncio.Future[Answer]:
        """Ask a model as ``infer`` does, but wait only until the request is sent.

        The arrays may be used again when it returns. The future raises what ``infer`` raises.
        """  # fmt: skip
        metadata |= {"priority": priority, "id": id, "parameters": parameters}
        message = question(model, inputs, timeout=timeout, metadata=metadata)
        if self._shared_memory and (describe := unnamed(message, self._names)):
            note_names(message, await self.request(describe, timeout=timeout), self._names)
        return await self._send(message, self._answer, timeout)

    def _answer(self, message: Message) -> Answer:
        try:
            return Answer(message)
        except Unauthenticated:
            self._renew(self._shown)
            raise

    def _renew(self, refused: str) -> bool:
        """Whether there is another token than one that is refused. See ``Client._renew``."""
        token = self._token.read()
        last = self._connection
        if last and token != self._shown:
            self._connection, self._shown = None, token
            self._leaving = [one for one in self._leaving if not one.ended] + [last]
            last.leave()
        return token != refused

    async def request(self, message: Message, *, timeout: float | None = None) -> Message:
        """Send a message as it is, and wait ``timeout`` for its answer. See ``Client.request``."""
        return await (await self._send(message, lambda answer: answer, timeout))

    def stream(self, model: str, name: str, *, keep: Keep = "latest", timeout: float | None = None) -> AsyncStream:
        """Open a stream of frames on a connection of its own. See ``AsyncStream``."""
        from .aio_stream import AsyncStream

        client = AsyncClient(
            self._name,
            tls=self._address.tls,
            connect_timeout=self._connect_timeout,
            in_flight=self._in_flight,
            max_message=self._max_message,
            shared_memory=self._shared_memory,
            token="",
        )
        client._token = self._token
        return AsyncStream(client, model, name, keep=keep, timeout=timeout)

    async def _send(self, message: Message, then: Callable[[Message], T], timeout: float | None) -> asyncio.Future[T]:
        """Send a message. The future has what ``then`` makes of the answer."""
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise RuntimeError("an AsyncClient belongs to the event loop in which it was first used; make one in each")
        self._loop = loop
        until = math.inf if timeout is None else time.monotonic() + timeout + GRACE
        late = f"no answer from {self._name} within {timeout} s"
        call = Call(then, self._slots)
        pieces = [] if self._shared_memory else wire.encode(message)
        sending = self._write(message, pieces, call, until)
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
        return call.future

    async def _write(
        self, message: Message, pieces: list[bytes | memoryview], call: Call[Any], until: float
    ) -> None:
        """Give a request to a connection, which finishes its call from here on."""
        began = time.monotonic()
        await self._slots.acquire()
        try:
            while True:
                connection = await self._connect(began, until)
                await connection.writable.wait()
                if self._shared_memory:
                    pieces, call.parts = encode(message, connection.memory)
                if connection.send(pieces, call):
                    return
        except BaseException:
            self._slots.release()
            raise

    async def close(self) -> None:
        """End the connection. Requests in flight, and those that wait to be sent, fail."""
        self._closed.set()
        for connection in self._leaving + ([self._connection] if self._connection else []):
            connection.end(ClientClosed, f"the client of {self._name} was closed")
            await connection.lost

    async def __aenter__(self) -> AsyncClient:
        """The client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

    async def _connect(self, began: float, until: float) -> Connection:
        """The connection, which is made if there is none."""
        async with self._connecting:
            last, name = self._connection, self._name
            if last and not last.ended:
                return last
            self._connection = None
            if last and last.ended and last.answered:
                self._backoff.succeeded()
            elif last and last.ended:
                self._backoff.failed(last.ended.why, last.ended.at)
            if not self._closed.is_set() and (pause := self._backoff.pause(began, until)):
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._closed.wait(), pause)
            if self._closed.is_set():
                raise ClientClosed(f"the client of {name} is closed", may_have_run=False)
            try:
                made = self._address.open(lambda: Connection(name, self._max_message))
                connection = await asyncio.wait_for(made, self._connect_timeout)
            except (OSError, ValueError, asyncio.TimeoutError) as error:
                why = self._address.unreachable(error)
                self._backoff.failed(why, time.monotonic())
                raise Unreachable(why, may_have_run=False) from error
            if token := self._token.read():
                first: Call[Message] = Call(lambda answer: answer, asyncio.Semaphore(0))
                connection.send(wire.encode(introduction(token)), first)
            if self._shared_memory:
                try:
                    await connection.share(self._shared_memory, self._connect_timeout)
                except BaseException:  # the task is cancelled, and nobody has the connection
                    connection.end(ConnectionLost, f"{name}: cancelled while it was made")
                    raise
            self._connection, self._shown = connection, token
            if self._closed.is_set():
                connection.end(ClientClosed, f"the client of {name} is closed")
            return connection


class Call(Generic[T]):
    """A request, and the future of who waits for its answer."""

    def __init__(self, then: Callable[[Message], T], slots: asyncio.Semaphore) -> None:
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._then, self._slots = then, slots
        self.parts: Parts | None = None  # of the connection's memory

    def finish(self, result: Message | Exception) -> None:
        """The connection has no more to do with it."""
        self._slots.release()
        self.settle(result)

    def settle(self, result: Message | Exception) -> None:
        """Resolve the future, which may be cancelled. A second result is dropped."""
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
        self._leaves = False  # it ends when what was sent on it is answered
        self.writable.set()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls: deque[Call[Any]] = deque()
        self._decoder = wire.Decoder(max_message)
        self._transport: asyncio.Transport
        self.memory: Memory | None = None  # that it shares with the server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        configure(transport.get_extra_info("socket"))

    async def share(self, size: int, patience: float) -> None:
        """Share memory with the server, as a connection for threads does."""
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
        """Send a request, whose call the connection finishes. False: it had ended before."""
        if self.ended or self._leaves:
            return False
        self._calls.append(call)
        # What cannot be written at once has to be copied, as the caller may be cancelled and use
        # its arrays again.
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
                    raise ProtocolError(f"an answer to no request: {message.namespace} {message.metadata}")
                self.answered = True
                call = self._calls.popleft()
                call.finish(self.memory.collect(message, call.parts) if self.memory and call.parts else message)
                if self._leaves:
                    self.leave()
        except (ProtocolError, MemoryError) as error:
            self.end(ConnectionLost, f"{self.name}: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        self.end(ConnectionLost, f"{self.name}: {lost(self.name, error, self.answered)}")
        if not self.lost.done():
            self.lost.set_result(None)

    def leave(self) -> None:
        """Send nothing more, and end when all that was sent is answered."""
        self._leaves = True
        if not self._calls:
            self.end(ConnectionLost, f"{self.name}: left")

    def end(self, kind: type[NotAnswered], why: str) -> None:
        """Fail what is in flight. Only the first reason counts."""
        if self.ended:
            return
        self.ended = End(why, time.monotonic())
        self.writable.set()
        calls, self._calls = self._calls, deque()
        for call in calls:
            call.finish(kind(why, may_have_run=True))
        self._transport.abort()

"""A client for asyncio."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, cast

from . import wire
from .backoff import Backoff
from .client import address
from .connection import GRACE, OPTIONS, End
from .errors import ClientClosed, ConnectionLost, NotAnswered, ProtocolError, TimedOut, Unreachable
from .request import Answer, question
from .wire import Message


class AsyncClient:
    """Asks one server over one connection, from one event loop. Any number of tasks may use it at once.

    It is as ``Client`` in all else.

        async with AsyncClient("localhost") as client:
            answer = await client.infer("digits", image)
    """

    def __init__(
        self, host: str = "localhost", port: int | None = None, *,
        connect_timeout: float = 10, in_flight: int = 128, max_message: int = 1 << 30,
    ) -> None:
        """Ask the server at host, which may be "host:port". See ``Client``."""  # fmt: skip
        if in_flight < 1:
            raise ValueError(f"in_flight is {in_flight}, it must be at least 1")
        self._address = address(host, port)
        self._connect_timeout = connect_timeout
        self._max_message = max_message
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
        metadata |= {"priority": priority, "id": id, "parameters": parameters}
        return Answer(await self.request(question(model, inputs, timeout=timeout, metadata=metadata), timeout=timeout))

    async def request(self, message: Message, *, timeout: float | None = None) -> Message:
        """Send a message as it is, and wait for its answer as long as timeout says. See ``Client.request``."""
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise RuntimeError("an AsyncClient belongs to the event loop in which it was first used; make one in each")
        self._loop = loop
        until = math.inf if timeout is None else time.monotonic() + timeout + GRACE
        sent: list[Connection] = []
        try:
            asked = self._ask(wire.encode(message), until, sent)
            return await (asked if timeout is None else asyncio.wait_for(asked, timeout + GRACE))
        except asyncio.TimeoutError as error:
            if isinstance(error, TimedOut):
                raise
            why = f"no answer from {self._name()} within {timeout} s"
            raise TimedOut(why, may_have_run=bool(sent)) from None

    async def _ask(self, pieces: list[bytes | memoryview], until: float, sent: list[Connection]) -> Message:
        began = time.monotonic()
        await self._slots.acquire()
        try:
            while True:
                connection = await self._connect(began, until)
                await connection.writable.wait()
                if (answer := connection.send(pieces, self._slots.release)) is not None:
                    break
        except BaseException:
            self._slots.release()
            raise
        sent.append(connection)
        return await answer

    async def close(self) -> None:
        """End the connection. Requests in flight, and those that wait to be sent, fail."""
        self._closed.set()
        if connection := self._connection:
            connection.end(ClientClosed, f"the client of {self._name()} was closed")
            await connection.lost

    async def __aenter__(self) -> AsyncClient:
        """The client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

    def _name(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"

    async def _connect(self, began: float, until: float) -> Connection:
        """The connection, which is made if there is none."""
        async with self._connecting:
            last, name = self._connection, self._name()
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
                made = asyncio.get_running_loop().create_connection(
                    lambda: Connection(name, self._max_message), *self._address
                )
                _, connection = await asyncio.wait_for(made, self._connect_timeout)
            except (OSError, UnicodeError, asyncio.TimeoutError) as error:
                why = f"{name}: {str(error) or 'timed out'}"
                self._backoff.failed(why, time.monotonic())
                raise Unreachable(why, may_have_run=False) from error
            self._connection = connection
            if self._closed.is_set():
                connection.end(ClientClosed, f"the client of {name} is closed")
            return connection


class Connection(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, name: str, max_message: int) -> None:
        self.name = name
        self.ended: End | None = None
        self.answered = False
        self.writable = asyncio.Event()
        self.writable.set()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls: deque[tuple[asyncio.Future[Message], Callable[[], None]]] = deque()
        self._decoder = wire.Decoder(max_message)
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        for option in OPTIONS:
            sock.setsockopt(*option)

    def send(self, pieces: list[bytes | memoryview], done: Callable[[], None]) -> asyncio.Future[Message] | None:
        """Send a request; done is called when it is answered. None: the connection has ended before."""
        if self.ended:
            return None
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._calls.append((answer, done))
        # What cannot be written at once has to be copied, as the caller may be cancelled and use its arrays again.
        self._transport.write(b"".join(pieces))
        return answer

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
                answer, done = self._calls.popleft()
                done()
                if not answer.done():
                    answer.set_result(message)
        except (ProtocolError, MemoryError) as error:
            self.end(ConnectionLost, f"{self.name}: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        why = str(error) if error else "the server closed the connection"
        self.end(ConnectionLost, f"{self.name}: {why}")
        if not self.lost.done():
            self.lost.set_result(None)

    def end(self, kind: type[NotAnswered], why: str) -> None:
        """Fail what is in flight. Only the first reason counts."""
        if self.ended:
            return
        self.ended = End(why, time.monotonic())
        self.writable.set()
        calls, self._calls = self._calls, deque()
        for answer, done in calls:
            done()
            if not answer.done():
                answer.set_exception(kind(why, may_have_run=True))
        self._transport.abort()

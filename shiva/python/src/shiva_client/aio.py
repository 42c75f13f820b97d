"""A client for asyncio."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, cast

from . import wire
from .client import GRACE, address
from .errors import ClientClosed, ConnectionLost, NotAnswered, TimedOut, Unreachable
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
        self._connection: _Connection | None = None
        self._closed = False
        self._failures = 0
        self._failed_at = 0.0

    async def infer(
        self, model: str, *inputs: Any, timeout: float | None = None, priority: int | None = None,
        id: Any = None, parameters: dict[str, Any] | None = None, **metadata: Any,
    ) -> Answer:
        """Ask a model and wait for its outputs. See ``Client.infer``."""  # fmt: skip
        metadata |= {"priority": priority, "id": id, "parameters": parameters}
        asked = self.request(question(model, inputs, timeout=timeout, metadata=metadata))
        if timeout is None:
            return Answer(await asked)
        try:
            return Answer(await asyncio.wait_for(asked, timeout + GRACE))
        except asyncio.TimeoutError:
            name = f"{self._address[0]}:{self._address[1]}"
            raise TimedOut(f"no answer from {name} within {timeout} s", may_have_run=True) from None

    async def request(self, message: Message) -> Message:
        """Send a message as it is. The answer is not looked at, so that it may be an error."""
        pieces = wire.encode(message)
        await self._slots.acquire()
        try:
            while True:
                connection = await self._connect()
                await connection.writable.wait()
                if (answer := connection.send(pieces, self._slots.release)) is not None:
                    break
        except BaseException:
            self._slots.release()
            raise
        return await answer

    async def close(self) -> None:
        """End the connection. Requests in flight fail."""
        self._closed = True
        if connection := self._connection:
            connection.end(ClientClosed(f"the client of {connection.name} was closed", may_have_run=True))
            await connection.lost

    async def __aenter__(self) -> AsyncClient:
        """The client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

    async def _connect(self) -> _Connection:
        name = f"{self._address[0]}:{self._address[1]}"
        async with self._connecting:
            if self._closed:
                raise ClientClosed(f"the client of {name} is closed", may_have_run=False)
            if self._connection and not self._connection.ended:
                return self._connection
            if self._connection and self._connection.answered:
                self._failures = 0
            loop = asyncio.get_running_loop()
            if self._failures:
                pause = self._failed_at + min(0.05 * 2 ** min(self._failures, 10), 5.0) - loop.time()
                await asyncio.sleep(max(0.0, pause))
            self._failures += 1  # until it brings an answer
            try:
                made = loop.create_connection(lambda: _Connection(name, self._max_message), *self._address)
                _, connection = await asyncio.wait_for(made, self._connect_timeout)
            except (OSError, asyncio.TimeoutError) as error:
                self._failed_at = loop.time()
                raise Unreachable(f"{name}: {error or 'timed out'}", may_have_run=False) from error
            self._failed_at = loop.time()
            self._connection = connection
            return connection


class _Connection(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, name: str, max_message: int) -> None:
        self.name = name
        self.ended: NotAnswered | None = None
        self.answered = False
        self.writable = asyncio.Event()
        self.writable.set()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls: deque[tuple[asyncio.Future[Message], Callable[[], None]]] = deque()
        self._decoder = wire.Decoder(max_message)
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

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
                    raise wire.ProtocolError(f"an answer to no request: {message.namespace} {message.metadata}")
                self.answered = True
                answer, done = self._calls.popleft()
                done()
                if not answer.done():
                    answer.set_result(message)
        except (wire.ProtocolError, MemoryError) as error:
            self.end(ConnectionLost(f"{self.name}: {error}", may_have_run=True))

    def connection_lost(self, error: Exception | None) -> None:
        why = str(error) if error else "the server closed the connection"
        self.end(ConnectionLost(f"{self.name}: {why}", may_have_run=True))
        if not self.lost.done():
            self.lost.set_result(None)

    def end(self, why: NotAnswered) -> None:
        """Fail what is in flight. Only the first reason counts."""
        if self.ended:
            return
        self.ended = why
        self.writable.set()
        calls, self._calls = self._calls, deque()
        for answer, done in calls:
            done()
            if not answer.done():
                answer.set_exception(why)
        self._transport.abort()

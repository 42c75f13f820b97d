"""A client for asyncio."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from .address import Address
from .aio_link import AsyncLink
from .errors import ClientClosed, Draining, ShivaError, Unauthenticated
from .request import Answer, newest, question
from .retry import Pursuit
from .servers import Servers, Settings, order, pick
from .shared import note_names, unnamed
from .tls import TLS
from .token import Token
from .wire import Message

if TYPE_CHECKING:
    from .aio_stream import AsyncStream
    from .frames import Keep

T = TypeVar("T")
Then = Callable[[AsyncLink, str, Message], T]


class AsyncClient:
    """Sends requests to one or several servers from one event loop. Any number of tasks may share
    it.

    In all else it works like ``Client``.

        async with AsyncClient("localhost") as client:
            answer = await client.infer("digits", image)
    """

    def __init__(
        self, host: str | Sequence[str] = "localhost", port: int | None = None, *,
        connect_timeout: float = 10, in_flight: int = 128, max_message: int = 1 << 30, shared_memory: int = 0,
        tls: TLS | None = None,
        token: str | None = None,
        repeatable: bool = False,
        servers: int = 16,
    ) -> None:
        """Ask the server at host, which may be "host:port", "tls://host:port" or "unix:/path".

        See ``Client``.
        """  # fmt: skip
        if in_flight < 1:
            raise ValueError(f"in_flight is {in_flight}, it must be at least 1")
        self._servers = Servers(host, port, tls, servers)
        self._name = self._servers.name
        self._settings = Settings(connect_timeout, in_flight, max_message, shared_memory, Token(token), repeatable)
        self._repeatable = repeatable
        self._leader: AsyncClient | None = None  # a stream's client connects where its leader may
        self._names: dict[str, list[str]] = {}  # inputs by model, for shared memory
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begin()

    def _begin(self) -> None:
        """Begin without a connection."""
        self._closed = False
        self._looking = asyncio.Lock()  # held during a lookup
        self._changed = asyncio.Event()  # set after each attempt to connect
        self._links: dict[Address | None, AsyncLink] = {}
        self._retired: list[AsyncLink] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def infer(
        self, model: str, *inputs: Any, timeout: float | None = None, priority: int | None = None,
        id: Any = None, parameters: dict[str, Any] | None = None, **metadata: Any,
    ) -> Answer:
        """Ask a model and wait for its outputs. See ``Client.infer``."""  # fmt: skip
        metadata |= {"priority": priority, "id": id, "parameters": parameters}
        while True:
            try:
                return await (await self._submit(model, inputs, timeout, metadata))
            except Unauthenticated as error:
                if not error.renewed:
                    raise

    async def latest(
        self, model: str, stream: str | None = None, *, user: str | None = None, max_age: float | None = None,
        after: Answer | int | None = None, wait: bool = False, timeout: float | None = None, **metadata: Any,
    ) -> Answer:
        """The newest answer of a stream. See ``Client.latest``."""  # fmt: skip
        asks = newest(stream, user, max_age, after, wait)
        return await self.infer(model + "/latest", timeout=timeout, **asks, **metadata)

    async def submit(
        self, model: str, *inputs: Any, timeout: float | None = None, priority: int | None = None,
        id: Any = None, parameters: dict[str, Any] | None = None, **metadata: Any,
    ) -> asyncio.Future[Answer]:
        """Ask a model as ``infer`` does, but wait only until the request is sent.

        The arrays may be used again when it returns. The future raises what ``infer`` raises.
        """  # fmt: skip
        metadata |= {"priority": priority, "id": id, "parameters": parameters}
        return await self._submit(model, inputs, timeout, metadata, keep=True)

    async def _submit(
        self, model: str, inputs: tuple[Any, ...], timeout: float | None, metadata: dict[str, Any], keep: bool = False
    ) -> asyncio.Future[Answer]:
        """Ask a model. Unless ``keep``, the arrays must not change until the answer."""
        message = question(model, inputs, timeout=timeout, metadata=metadata)
        if self._settings.shared_memory and (describe := unnamed(message, self._names)):
            note_names(message, await self.request(describe, timeout=timeout), self._names)
        return await self._ask(message, self._answer, timeout, keep)

    def _answer(self, link: AsyncLink, shown: str, message: Message) -> Answer:
        try:
            return Answer(message)
        except Unauthenticated as error:
            error.renewed = link.renew(shown)
            raise
        except Draining:
            if self._repeatable or self._leader or link.one_of_several:
                link.leave(drained=True)  # another connection may reach another server
            raise

    async def request(self, message: Message, *, timeout: float | None = None) -> Message:
        """Send a message unchanged, and wait ``timeout`` for its answer. See ``Client.request``."""
        return await (await self._ask(message, lambda link, shown, answer: answer, timeout, keep=False))

    def stream(self, model: str, name: str, *, keep: Keep = "latest", timeout: float | None = None) -> AsyncStream:
        """Open a stream of frames on a connection of its own. See ``AsyncStream``."""
        from .aio_stream import AsyncStream

        client = copy.copy(self)
        client._leader, client._repeatable = self, False
        client._begin()
        return AsyncStream(client, model, name, keep=keep, timeout=timeout)

    async def _ask(self, message: Message, then: Then[T], timeout: float | None, keep: bool) -> asyncio.Future[T]:
        """Send a message. The future's result is that of ``then`` for the answer."""
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise RuntimeError("an AsyncClient belongs to the event loop in which it was first used; make one in each")
        self._loop = loop
        links = await self._ready()
        link = pick(links, ())
        if link and not link.one_of_several and not self._repeatable:
            return await link.send(message, partial(then, link, link.shown), timeout)
        if keep:
            message.tensors = [np.array(array) for array in message.tensors]
        pursuit: Pursuit[AsyncLink] = Pursuit(
            message.namespace, resendable=len(links) > 1 or self._repeatable, repeatable=self._repeatable,
            timeout=timeout, patience=self._settings.connect_timeout,
        )  # fmt: skip
        future: asyncio.Future[T] = loop.create_future()
        first = await link.send(message, partial(then, link, link.shown), timeout) if link else None
        self._spawn(self._pursue(message, then, timeout, pursuit, link, first, future))
        return future

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pursue(
        self, message: Message, then: Then[T], timeout: float | None, pursuit: Pursuit[AsyncLink],
        link: AsyncLink | None, sent: asyncio.Future[T] | None, future: asyncio.Future[T],
    ) -> None:
        """Ask one server after the other until one answers."""  # fmt: skip
        try:
            while not future.done():
                if link:
                    try:
                        if not sent:
                            if (left := pursuit.left) and "timeout_ms" in message.metadata:
                                message.metadata["timeout_ms"] = left * 1000
                            sent = await link.send(message, partial(then, link, link.shown), left)
                        answer = await sent
                        if not future.done():
                            future.set_result(answer)
                        return
                    except ShivaError as error:
                        if not pursuit.record_failure(link, link.name, error):
                            raise pursuit.error() from None
                links, sent = await self._ready(), None
                if not (link := pick(links, pursuit.tried)):
                    await self._pause(pursuit, links)
        except BaseException as error:
            if not future.done():
                future.set_exception(error)
            if not isinstance(error, Exception):
                raise

    async def _pause(self, pursuit: Pursuit[AsyncLink], links: list[AsyncLink]) -> None:
        """Wait for the next round; raises the request's error if there is none."""
        for one in links:
            if not one.up:
                pursuit.down(one, one.name, one.why)
        if self._closed:
            raise ClientClosed(f"the client of {self._name} was closed", may_have_run=False)
        if (pause := pursuit.pause()) is None:
            raise pursuit.error()
        self._changed.clear()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._changed.wait(), pause)

    async def _ready(self) -> list[AsyncLink]:
        """The servers. Starts connections to those that are down, and lookups that are due."""
        if not self._links:
            async with self._looking:
                if not self._links:
                    await self._relist()
        elif self._leader:
            await self._leader._ready()
        elif self._servers.named and self._servers.due <= time.monotonic() and not self._looking.locked():
            self._spawn(self._look_again())
        links = list(self._links.values())
        for link in links:
            if link.one_of_several and not link.up:
                link.wake()
        return links

    async def _look_again(self) -> None:
        async with self._looking:
            await self._relist()

    async def _relist(self) -> None:
        """Make a link for each new server, and retire the links of former ones."""
        if self._leader:
            several = len(await self._leader._ready()) > 1
            link = AsyncLink(self._name, None, self._settings, checks_live=several)
            link.choose = partial(self._leader._order, link)
            links: dict[Address | None, AsyncLink] = {None: link}
        else:
            find = self._servers.look_up
            found = await asyncio.to_thread(find) if self._servers.named else find()
            links = {one: self._links.get(one) or self._link(one) for one in found}
        gone = [link for one, link in self._links.items() if one not in links]
        self._retired = [link for link in self._retired if not link.over] + gone
        self._links = links
        for link in gone:
            link.retire()
        if self._closed:
            for link in links.values():
                await link.close()
        self._servers.looked(any(link.one_of_several and not link.up for link in links.values()))

    def _link(self, address: Address) -> AsyncLink:
        several = self._servers.several
        changed = self._changed.set if several else None
        link = AsyncLink(str(address), address, self._settings, checks_live=several, changed=changed)
        link.choose = lambda: [address]
        return link

    def _order(self, link: AsyncLink) -> list[Address]:
        """Where the link of a stream may connect, best first."""
        links = list(self._links.values())
        return [one.address for one in order(links, link.address, link.drained) if one.address]

    async def close(self) -> None:
        """End the connections. Requests in flight, and those that wait to be sent, fail."""
        self._closed = True
        for link in [*self._links.values(), *self._retired]:
            await link.close()
        self._changed.set()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def __aenter__(self) -> AsyncClient:
        """The client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

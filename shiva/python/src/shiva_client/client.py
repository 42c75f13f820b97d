"""A client for threads."""

from __future__ import annotations

import copy
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from .address import Address
from .errors import ClientClosed, Draining, ShivaError, Unauthenticated
from .link import Link
from .request import Answer, newest, question
from .retry import Pursuit
from .servers import Servers, Settings, order, pick
from .shared import note_names, unnamed
from .tls import TLS
from .token import Token
from .wire import Message

if TYPE_CHECKING:
    from .frames import Keep
    from .stream import Stream

T = TypeVar("T")


class Client:
    """Sends requests to one or several servers. Any number of threads may share it.

    Each server has one pipelined connection, made with the first request, and again when it is
    lost. A request that was sent on a lost connection fails, since only its sender knows whether it
    may run twice; see NotAnswered.may_have_run.

        with Client("localhost") as client:
            answer = client.infer("digits", image)
            print(answer["label"])

    Of two servers chosen at random, a request goes to the one with fewer requests waiting, and to
    another one if it was not sent, or answered Draining, Unavailable, NotFound or, once,
    Overloaded; with ``repeatable`` also if its answer was lost. This continues until its timeout,
    or for ``connect_timeout`` if it has none. The final error has ``attempts``.
    """

    def __init__(
        self, host: str | Sequence[str] = "localhost", port: int | None = None, *,
        connect_timeout: float = 10, in_flight: int = 128, max_message: int = 1 << 30, shared_memory: int = 0,
        tls: TLS | None = None,
        token: str | None = None,
        repeatable: bool = False,
        servers: int = 16,
    ) -> None:
        """Use the server at host: "host:port", "tls://host:port", or "unix:/path" on this machine.

        Args:
            host: name or address; several in a list or separated by commas. A name that resolves to
                several addresses stands for that many servers, and is looked up again.
            port: 6174 if neither port nor host has one
            connect_timeout: in seconds
            in_flight: how many requests may be unanswered at once, per server; more wait in
                ``submit``. Servers allow 256.
            max_message: the largest answer that is read, in bytes
            shared_memory: bytes of memory to share with a server on this machine. Large tensors are
                placed there instead of sent.
            tls: TLS settings for a server at "tls://host:port"; None: ``TLS()``
            token: identifies the client to the server; None: ``$SHIVA_TOKEN``, else the file
                ``$SHIVA_TOKEN_FILE``, which is read again for each connection, and when the server
                no longer accepts its token
            repeatable: whether requests may run twice. If so, a request whose answer was lost, or
                that waits for a server that has fallen silent, is sent again, to another server or
                over another connection. Feedback never is.
            servers: how many servers to use at once; of more, each client makes its own choice
        """  # fmt: skip
        if in_flight < 1:
            raise ValueError(f"in_flight is {in_flight}, it must be at least 1")
        self._servers = Servers(host, port, tls, servers)
        self._name = self._servers.name
        self._settings = Settings(connect_timeout, in_flight, max_message, shared_memory, Token(token), repeatable)
        self._repeatable = repeatable
        self._leader: Client | None = None  # a stream's client connects where its leader may
        self._names: dict[str, list[str]] = {}  # inputs by model, for shared memory
        self._begin()
        _clients.add(self)

    def _begin(self) -> None:
        """Begin without a connection."""
        self._closed = threading.Event()
        self._looking = threading.Lock()  # held during a lookup
        self._changed = threading.Condition()  # notified after an attempt to connect
        self._lock = threading.Lock()  # guards the following
        self._links: dict[Address | None, Link] = {}
        self._retired: list[Link] = []

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
        metadata |= {"priority": priority, "id": id, "parameters": parameters}
        while True:
            try:
                return self._submit(model, inputs, timeout, metadata).result()
            except Unauthenticated as error:
                if not error.renewed:
                    raise

    def latest(
        self, model: str, stream: str | None = None, *, user: str | None = None, max_age: float | None = None,
        after: Answer | int | None = None, wait: bool = False, timeout: float | None = None, **metadata: Any,
    ) -> Answer:
        """The newest answer of a stream, whose frames any client sends to the model.

            seen = client.latest("cells", "belt-3", max_age=0.5)
            while True:
                seen = client.latest("cells", "belt-3", after=seen, wait=True)

        Its metadata has ``seq``, ``age_ms``, ``captured_at`` and ``skipped``.

        Args:
            model: a model or an application
            stream: None: the only one that the model has
            user: of the stream's frames; None: any
            max_age: in seconds; an older answer is Unavailable, or with ``wait`` the next is waited
                for
            after: the last answer that the caller has, or its ``seq``: only a newer one will do
            wait: for an answer that will do, until the timeout (DeadlineExceeded); without
                ``after`` and ``max_age`` that is the answer to the next frame
            timeout: in seconds; None: the server's default
            metadata: other keys, such as ``version``

        Raises:
            NotFound: no such stream
            Unavailable: no answer will do now, and ``wait`` is False
        """  # fmt: skip
        return self.infer(model + "/latest", timeout=timeout, **newest(stream, user, max_age, after, wait), **metadata)

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
        return self._submit(model, inputs, timeout, metadata, keep=True)

    def _submit(
        self, model: str, inputs: tuple[Any, ...], timeout: float | None, metadata: dict[str, Any], keep: bool = False
    ) -> Future[Answer]:
        """Ask a model. Unless ``keep``, the arrays must not change until the answer."""
        message = question(model, inputs, timeout=timeout, metadata=metadata)
        if self._settings.shared_memory and (describe := unnamed(message, self._names)):
            note_names(message, self.request(describe, timeout=timeout).result(), self._names)
        return self._ask(message, self._answer, timeout, keep)

    def _answer(self, link: Link, shown: str, message: Message) -> Answer:
        try:
            return Answer(message)
        except Unauthenticated as error:
            error.renewed = link.renew(shown)
            raise
        except Draining:
            if self._repeatable or self._leader or link.one_of_several:
                link.leave(drained=True)  # another connection may reach another server
            raise

    def request(self, message: Message, *, timeout: float | None = None) -> Future[Message]:
        """Send a message unchanged, and wait for its answer. The server is not told the timeout.

        The answer is not checked, so it may be an error.
        """
        return self._ask(message, lambda link, shown, answer: answer, timeout, keep=True)

    def stream(self, model: str, name: str, *, keep: Keep = "latest", timeout: float | None = None) -> Stream:
        """A stream of frames, such as a camera's, on a connection of its own. See ``Stream``.

        Among several servers, the stream stays with one until that is unreachable or shutting down.
        """
        from .stream import Stream

        client = copy.copy(self)
        client._leader, client._repeatable = self, False
        client._begin()
        _clients.add(client)
        return Stream(client, model, name, keep=keep, timeout=timeout)

    def close(self) -> None:
        """End the connections. Requests in flight, and those that wait to be sent, fail."""
        self._closed.set()
        with self._lock:
            links = [*self._links.values(), *self._retired]
        for link in links:
            link.close()
        with self._changed:
            self._changed.notify_all()

    def __enter__(self) -> Client:
        """The client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def __del__(self) -> None:
        """End the readers of a client that was not closed."""
        for link in getattr(self, "_links", {}).values():
            link.hang_up()

    def _ask(
        self, message: Message, then: Callable[[Link, str, Message], T], timeout: float | None, keep: bool
    ) -> Future[T]:
        """Send a message. The future's result is that of ``then`` for the answer."""
        links = self._ready()
        link = pick(links, ())
        if link and not link.one_of_several and not self._repeatable:
            return link.send(message, partial(then, link, link.shown), timeout)
        if keep:
            message.tensors = [np.array(array) for array in message.tensors]
        pending: PendingRequest[T] = PendingRequest(
            message, then, timeout,
            Pursuit(
                message.namespace, resendable=len(links) > 1 or self._repeatable, repeatable=self._repeatable,
                timeout=timeout, patience=self._settings.connect_timeout,
            ),
        )  # fmt: skip
        if link:
            first = link.send(message, partial(then, link, link.shown), timeout)
            first.add_done_callback(lambda done: self._conclude(pending, link, done))
        else:
            self._continue_in_thread(pending)
        return pending.future

    def _conclude(self, pending: PendingRequest[T], link: Link, done: Future[T]) -> None:
        """Take the answer of the first server, or continue with the next."""
        error = done.exception()
        if not error:
            pending.settle(done.result())
        elif pending.pursuit.record_failure(link, link.name, error):
            self._continue_in_thread(pending)
        else:
            pending.fail(pending.pursuit.error() if isinstance(error, ShivaError) else error)

    def _continue_in_thread(self, pending: PendingRequest[Any]) -> None:
        """Continue in another thread: this one may be the reader of answers."""
        threading.Thread(target=self._try_servers, args=(pending,), name="shiva retry", daemon=True).start()

    def _try_servers(self, pending: PendingRequest[T]) -> None:
        """Ask one server after the other until one answers."""
        pursuit, message = pending.pursuit, pending.message
        try:
            while True:
                links = self._ready()
                if link := pick(links, pursuit.tried):
                    if (left := pursuit.left) and "timeout_ms" in message.metadata:
                        message.metadata["timeout_ms"] = left * 1000
                    try:
                        sent = link.send(message, partial(pending.then, link, link.shown), left)
                        pending.settle(sent.result())
                        return
                    except ShivaError as error:
                        if pursuit.record_failure(link, link.name, error):
                            continue
                        raise pursuit.error() from None
                for one in links:
                    if not one.up:
                        pursuit.down(one, one.name, one.why)
                if self._closed.is_set():
                    raise ClientClosed(f"the client of {self._name} was closed", may_have_run=False)
                if (pause := pursuit.pause()) is None:
                    raise pursuit.error()
                with self._changed:
                    self._changed.wait(pause)
        except BaseException as error:
            pending.fail(error)

    def _ready(self) -> list[Link]:
        """The servers. Starts connections to those that are down, and lookups that are due."""
        if not self._links:
            with self._looking:
                if not self._links:
                    self._relist()
        elif self._leader or not self._servers.named:
            pass
        elif self._servers.due <= time.monotonic() and self._looking.acquire(blocking=False):
            threading.Thread(target=self._look_again, name="shiva lookup", daemon=True).start()
        links = list(self._links.values())
        for link in links:
            if link.one_of_several and not link.up:
                link.wake()
        return links

    def _look_again(self) -> None:
        try:
            self._relist()
        finally:
            self._looking.release()

    def _relist(self) -> None:
        """Make a link for each new server, and retire the links of former ones."""
        if self._leader:
            link = Link(self._name, None, self._settings, checks_live=len(self._leader._ready()) > 1)
            link.choose = partial(self._leader._order, link)
            links: dict[Address | None, Link] = {None: link}
        else:
            links = {one: self._links.get(one) or self._link(one) for one in self._servers.look_up()}
        with self._lock:
            gone = [link for one, link in self._links.items() if one not in links]
            self._retired = [link for link in self._retired if not link.over] + gone
            self._links = links
        for link in gone:
            link.retire()
        if self._closed.is_set():
            for link in links.values():
                link.close()
        self._servers.looked(any(link.one_of_several and not link.up for link in links.values()))

    def _link(self, address: Address) -> Link:
        several = self._servers.several
        changed = self._notify if several else None
        link = Link(str(address), address, self._settings, checks_live=several, changed=changed)
        link.choose = lambda: [address]
        return link

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _order(self, link: Link) -> list[Address]:
        """Where the link of a stream may connect, best first."""
        return [one.address for one in order(self._ready(), link.address, link.drained) if one.address]

    def _forked(self) -> None:
        """Start over in the child of a fork: connections and their readers are the parent's."""
        links, closed = [*self._links.values(), *self._retired], self._closed.is_set()
        self._begin()
        if closed:
            self._closed.set()
        for link in links:
            link.forked()


class PendingRequest(Generic[T]):
    """A request that may go to several servers, and the future of its answer."""

    def __init__(
        self, message: Message, then: Callable[[Link, str, Message], T], timeout: float | None, pursuit: Pursuit[Link]
    ) -> None:
        self.message, self.then, self.timeout, self.pursuit = message, then, timeout, pursuit
        self.future: Future[T] = Future()

    def settle(self, result: T) -> None:
        """Resolve the future, which may be cancelled."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Fail the future, which may be cancelled."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

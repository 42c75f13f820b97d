"""The process: an I/O thread that talks to all servers, runners that compute, and signals."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from types import FrameType, TracebackType
from typing import Any

from . import wire
from .addresses import Address, Resolver, parse_servers
from .arena import AVAILABLE
from .connection import Connection
from .health import Health, Settings
from .kept import KEPT
from .link import Link
from .models import Model, declared_models, error_text
from .poller import READ, WRITE, Poller
from .runner import Runner
from .secure import TLS
from .session import EXCUSE_SECONDS
from .subset import LOOK_SECONDS, Choice, subset_size
from .tensors import DeclarationError
from .token import Token

log = logging.getLogger("shiva_container")

DRAIN_SECONDS = 30.0
LINGER_SECONDS = 1.0
"""How long a half-closed connection may take to send its last answers."""
_JOIN_SECONDS = 2.0
_SIGNAL_SECONDS = 1.0


def hello(
    model: Model[..., Any],
    instance: str,
    *,
    arena: bool = False,
    token: str = "",
    subset: dict[str, int] | None = None,
    again: bool = False,
) -> bytes:
    """The registration of a model: the JSON of its hello message. ``again``: not the first one."""
    head: dict[str, object] = {
        "protocol": wire.PROTOCOL,
        "model": model.name,
        "version": model.version,
        "platform": model.platform,
        "inputs": [tensor.json() for tensor in model.inputs],
        "outputs": [tensor.json() for tensor in model.outputs],
        "batched": model.batched,
        "concurrency": min(model.concurrency, wire.MAX_SLOTS),
        "pauses": True,
        "grants": True,
        "waits": True,
        "again": again,
        "instance": instance,
    }
    if model.concurrency > 1:
        # One more than can run, so that the next batch is here when one ends. A server that knows
        # concurrency does so by itself; older servers would send two.
        head["slots"] = min(model.concurrency + 1, wire.MAX_SLOTS)
    if model.max_batch:
        head["max_batch"] = model.max_batch
    if model.user:
        head["user"] = True
    if model.sees_requests:
        head["metadata"] = True
    if model.feedback_hook is not None:
        head["feedback"] = True
    if arena:
        head["arena"] = True
        if model.images:
            head["opens"] = True
    if model.parameters:
        head["parameters"] = model.parameters
    if subset:
        head["subset"] = subset
    if token:
        head["token"] = token
    return wire.to_json(head)


class Container:
    """Serves models in the background; a context manager. :func:`serve` adds signals to it.

    All methods may be called from any thread. ``drain`` may be called from a signal handler.
    """

    def __init__(
        self,
        *models: Model[..., Any],
        servers: str | Iterable[str] | None = None,
        instance: str | None = None,
        arena: bool = True,
        token: str | None = None,
        tls: TLS | None = None,
        subset: int | None = None,
    ) -> None:
        for one in models:
            _check_served(one)
        self._models = list(models) or declared_models()
        if not self._models:
            raise DeclarationError("no model to serve: decorate a function with @model")
        self._addresses = parse_servers(servers)
        self._tls = _trust(self._addresses, tls)
        self._subset = subset_size(subset)
        self._arena = arena and AVAILABLE
        self._token = Token(token)
        self._instance = instance or f"{socket.gethostname()}:{os.getpid()}"
        self._poller: Poller[Link | Connection] = Poller()
        self._mail: deque[Callable[[], None]] = deque()
        self._runners = [self._runner(model) for model in self._models]
        self._resolver = Resolver(self._addresses, lambda found: self._post(lambda: self._relist(found)))
        self._thread = threading.Thread(target=self._run, name="shiva-io", daemon=True)
        self._ready = threading.Event()
        self._finished = threading.Event()
        # Owned by the I/O thread.
        self._warm: list[Runner] = []
        self._found: dict[Address, list[str]] = {}
        self._choices: dict[tuple[Runner, Address], Choice] = {}
        self._look = float("inf")  # when the choices are reviewed next
        self._links: list[Link] = []
        self._leaving: dict[Connection, float] = {}
        self._unhealthy: set[Runner] = set()
        self._draining = False
        self._drain_until = float("inf")
        self._stopping = False
        self._failure: BaseException | None = None

    def start(self) -> Container:
        """Warm up and connect, in the background."""
        self._thread.start()
        for runner in self._runners:
            runner.start()
        self._resolver.start()
        return self

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait until every model is registered with at least one server."""
        return self._ready.wait(timeout) and not self._finished.is_set()

    def unready(self) -> str:
        """Why some model is not registered with a server; "" if all are."""
        loading = [str(runner.model) for runner in self._runners if runner not in self._warm]
        if loading:
            return f"loading {', '.join(loading)}"
        served = {str(link.model) for link in self._links if link.live}
        missing = [str(model) for model in self._models if str(model) not in served]
        return f"no server has registered {', '.join(missing)}" if missing else ""

    def stuck(self, seconds: float) -> str:
        """Which model has had a batch in its function for longer than ``seconds``; "" if none."""
        now = time.monotonic()
        for runner in self._runners:
            if (longest := runner.longest(now)) > seconds:
                return f"model {runner.model} has computed one batch for {longest:.0f} s, limit {seconds:.0f} s"
        return ""

    def drain(self, timeout: float = DRAIN_SECONDS) -> None:
        """Ask the servers to send no more batches, answer the received ones, then end.

        Returns at once: see ``wait``.
        """
        self._post(lambda: self._begin_drain(timeout))

    def stop(self) -> None:
        """End now; batches in computation are lost. Returns at once."""
        self._post(self._begin_stop)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end; True if it is reached. RuntimeError if a model could not warm up."""
        if not self._finished.wait(timeout):
            return False
        if self._failure is not None:
            raise RuntimeError(str(self._failure)) from self._failure
        return True

    def __enter__(self) -> Container:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._finished.wait()

    # Any thread: pass work to the I/O thread.

    def _post(self, work: Callable[[], None]) -> None:
        self._mail.append(work)
        self._poller.wake()

    def _runner(self, model: Model[..., Any]) -> Runner:
        def ready(error: BaseException | None) -> None:
            self._post(lambda: self._warmed(runner, error))

        runner = Runner(model, ready, self._poller.wake, self._excuse)
        return runner

    def _excuse(self, computing: Link) -> None:
        """Tell the servers of the other links that this process may be silent: a call begins."""
        now = time.monotonic()
        for link in self._links:
            if link is not computing:
                link.excuse(now)

    # The I/O thread.

    def _run(self) -> None:
        try:
            while not self._over():
                self._turn()
        except BaseException as e:  # a bug here must end the process with its name, not hang it
            log.exception("the I/O thread failed")
            self._failure = e
        finally:
            try:
                self._clean_up()
            except OSError as e:  # as when the process has closed all its descriptors
                log.warning("at the end of the container: %s", e)
            finally:
                self._finished.set()
                self._ready.set()

    def _clean_up(self) -> None:
        self._resolver.stop()
        KEPT.free(float("inf"))
        for link in self._links:
            link.close()
        while self._leaving:
            self._close_leaving(time.monotonic())
            self._wait({}, LINGER_SECONDS / 10)
        for runner in self._runners:
            runner.stop(_JOIN_SECONDS)
        self._poller.close()

    def _turn(self) -> None:
        while self._mail:
            self._mail.popleft()()
        now = time.monotonic()
        if now >= self._look:
            self._relink()
        loading = len(self._warm) < len(self._runners)
        busy = [link for link in self._links if link.pending or now - link.called < EXCUSE_SECONDS]
        for link in self._links:
            link.tick(now, excused=loading or any(other is not link for other in busy))
        self._links = [link for link in self._links if link.listed or link.session is not None]
        for runner in self._runners:
            runner.arbiter.send()
        if not any(link.pending for link in self._links):
            KEPT.free(now)
        self._close_leaving(now)
        self._tell_ready()
        if self._over() or self._mail:
            return
        wake = min(self._drain_until, self._look)
        for runner in self._runners:
            mine = [link for link in self._links if link.model is runner.model]
            # For a model that several servers share, one thread reads for all threads that compute.
            runner.offer([(link, link.number) for link in mine if link.live and not runner.arbiter.shared])
            wake = min([wake, runner.watch(now), runner.arbiter.tick(now)] + [link.wake() for link in mine])
        follow: dict[int, tuple[Link | Connection, int]] = {}
        for link in self._links:
            if link.session is not None and link.number >= 0 and not link.led:
                follow[link.number] = link, READ | WRITE * link.blocked
        self._wait(follow, wake - now)
        if time.monotonic() >= self._drain_until:
            pending = sum(link.pending for link in self._links)
            log.warning("not drained in time: %d batches are lost", pending)
            self._begin_stop()

    def _wait(self, follow: dict[int, tuple[Link | Connection, int]], pause: float) -> None:
        """Wait for sockets, and read those that are ready."""
        for connection, until in self._leaving.items():
            follow[connection.socket.fileno()] = connection, READ | WRITE * connection.unsent
            pause = min(pause, until - time.monotonic())
        self._poller.follow(follow)
        for one in self._poller.wait(None if pause == float("inf") else max(pause, 0)):
            if isinstance(one, Link):
                one.readable()

    def _close_leaving(self, now: float) -> None:
        """Continue to close connections, and drop those that are closed or out of time."""
        for connection, until in list(self._leaving.items()):
            if now >= until or not connection.finish():
                del self._leaving[connection]
                connection.close()

    def _over(self) -> bool:
        if self._stopping:
            return True
        idle = all(link.session is None for link in self._links)
        if self._draining:
            return idle
        all_warm = len(self._warm) == len(self._runners)
        return idle and all_warm and bool(self._links) and all(link.retired for link in self._links)

    def _tell_ready(self) -> None:
        served = {str(link.model) for link in self._links if link.live}
        if len(served) == len(self._models):
            self._ready.set()
        else:
            self._ready.clear()

    def _warmed(self, runner: Runner, error: BaseException | None) -> None:
        if error is not None:
            what = "its event loop was ended" if runner in self._warm else "warm-up failed"
            log.error("model %s: %s", runner.model, what, exc_info=error)
            self._failure = RuntimeError(f"model {runner.model}: {what}: {error_text(error)}")
            self._begin_stop()
            return
        self._warm.append(runner)
        runner.learn()
        runner.watch_health(lambda wrong: self._post(lambda: self._set_health(runner, wrong)))
        self._relink()

    def _relist(self, found: dict[Address, list[str]]) -> None:
        self._found = found
        for (_, address), choice in self._choices.items():
            choice.list(found[address], time.monotonic())
        self._relink()

    def _relink(self) -> None:
        """Have a link for each warm model and each endpoint that it is to serve.

        A link whose endpoint is no longer listed lasts as long as its session; a link that is left
        for another server drains.
        """
        if self._draining:
            return
        now = time.monotonic()
        self._look = float("inf")
        known = {endpoint for endpoints in self._found.values() for endpoint in endpoints}
        for runner in self._warm:
            mine = {link.endpoint: link for link in self._links if link.model is runner.model}
            wanted = self._wanted(runner, mine, now)
            for link in mine.values():
                link.listed = link.endpoint in wanted
                if not link.listed and link.endpoint in known:
                    link.drain("another server has fewer containers of the model")
            for endpoint, choice in wanted.items():
                if endpoint not in mine:
                    mine[endpoint] = self._link(runner, endpoint)
                    self._links.append(mine[endpoint])
                mine[endpoint].choice = choice

    def _wanted(self, runner: Runner, mine: dict[str, Link], now: float) -> dict[str, dict[str, int] | None]:
        """The endpoints that a model is to have sessions with, each with the subset for hello."""
        wanted: dict[str, dict[str, int] | None] = {}
        for address, endpoints in self._found.items():
            if address.literal:
                wanted |= dict.fromkeys(endpoints)
                continue
            choice = self._choices.get((runner, address))
            if choice is None:
                choice = self._choices[runner, address] = Choice(secrets.token_hex(8), self._subset)
                choice.list(endpoints, now)
            if choice.hello:
                self._look = now + LOOK_SECONDS
            wanted |= dict.fromkeys(choice.look(mine, now), choice.hello)
        return wanted

    def _link(self, runner: Runner, endpoint: str) -> Link:
        link = Link(
            runner.model,
            endpoint,
            partial(hello, runner.model, self._instance, arena=self._arena),
            runner.arbiter,
            runner.teach,
            self._poller.wake,
            self._leave,
            arena=self._arena,
            token=self._token,
            tls=self._tls,
        )
        link.wanted = runner not in self._unhealthy
        return link

    def _set_health(self, runner: Runner, wrong: str) -> None:
        (self._unhealthy.add if wrong else self._unhealthy.discard)(runner)
        if wrong:
            log.error("model %s: %s; leaving the servers until it is healthy", runner.model, wrong)
        else:
            log.info("model %s: healthy again", runner.model)
        for link in self._links:
            if link.model is runner.model:
                link.wanted = not wrong

    def _begin_drain(self, timeout: float) -> None:
        if self._draining:
            return
        self._draining, self._look = True, float("inf")
        self._drain_until = time.monotonic() + timeout
        for link in self._links:
            link.drain("the container is shutting down")
            link.listed = False

    def _leave(self, connection: Connection) -> None:
        self._leaving[connection] = time.monotonic() + LINGER_SECONDS

    def _begin_stop(self) -> None:
        self._stopping = True


def _trust(addresses: list[Address], tls: TLS | None) -> TLS | None:
    """The TLS settings if a server uses TLS, else None. ValueError now if a file is wrong."""
    if not any(address.encrypted for address in addresses):
        if tls is not None:
            raise ValueError("a server tls://host:port is expected with tls")
        return None
    tls = tls or TLS.from_environment()
    tls.context()
    return tls


def _check_served(one: object) -> None:
    if isinstance(one, str):
        raise DeclarationError(f"serve() takes models, got the server address {one!r}: say serve(servers={one!r})")
    if not isinstance(one, Model):
        name = getattr(one, "__name__", repr(one))
        raise DeclarationError(f"{name} is not a model: decorate the function with @model(name=..., inputs=[...], ...)")


_checking = False


def set_checking(on: bool) -> None:
    """While on, :func:`serve` returns at once: ``check`` loads a file for its models only."""
    global _checking
    _checking = on


def serve(
    *models: Model[..., Any],
    servers: str | Iterable[str] | None = None,
    instance: str | None = None,
    drain_seconds: float = DRAIN_SECONDS,
    arena: bool = True,
    token: str | None = None,
    tls: TLS | None = None,
    health: str | None = None,
    subset: int | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, or until every server has retired every model.

    ``models``
        the models to serve; all models of this process if none is given.
    ``servers``
        ``"host:port"``, several separated by commas or in a list, ``tls://host:port``,
        ``ipc:///path``; else ``$SHIVA_SERVERS``, else 127.0.0.1:7000. The models register with
        each. A name is followed: all its addresses are used, and looked up again from time to time.
    ``instance``
        a label that the server shows for this process; host and process id by default.
    ``drain_seconds``
        how long the first SIGTERM waits for answers to the received batches. A second one ends the
        process at once.

    ``arena``
        whether large tensors go by shared memory where a server on this machine offers it. A
        function that keeps an input after it has returned gets copies.
    ``token``
        shows the servers who the container is; else ``$SHIVA_TOKEN``, else the contents of the file
        ``$SHIVA_TOKEN_FILE``, else none. The file is read for each registration.
    ``tls``
        the settings of TLS with servers at ``tls://host:port``; else those of ``$SHIVA_TLS_CA``,
        ``$SHIVA_TLS_CERT``, ``$SHIVA_TLS_KEY``, ``$SHIVA_TLS_NAME`` and ``$SHIVA_TLS_INSECURE``.
        ValueError if a file is wrong.
    ``health``
        ``"host:port"``, or ``":port"`` for all addresses, where /livez and /readyz answer over
        HTTP: see health.py; else ``$SHIVA_HEALTH``, else nowhere.
    ``subset``
        the number of servers with which the models have sessions if a name resolves to more; else
        ``$SHIVA_SUBSET``, else 16. Containers have different subsets.

    RuntimeError if a model cannot warm up.
    """
    if _checking:
        return
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    container = Container(
        *models, servers=servers, instance=instance, arena=arena, token=token, tls=tls, subset=subset
    )
    settings = Settings.read(health)
    asked = False
    pid = os.getpid()

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if os.getpid() != pid:  # a forked child has this handler, but not our threads
            signal.signal(number, before.get(signal.Signals(number), signal.SIG_DFL))
            signal.raise_signal(number)
            return
        again, asked = asked, True  # first: the second signal may come while this one is handled
        if again:
            container.stop()
        else:
            container.drain(drain_seconds)

    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    answering = settings and Health(
        settings, {"/livez": lambda: container.stuck(settings.stuck), "/readyz": container.unready}
    )
    try:
        with container:
            # A signal just before the wait, or to another thread, does not end it. Its handler
            # runs afterwards.
            while not container.wait(_SIGNAL_SECONDS):
                pass
    finally:
        if answering:
            answering.close()
        for number, handler in before.items():
            signal.signal(number, handler)

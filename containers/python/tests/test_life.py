"""A container from its warm-up to its end: health, goodbyes, drains and stops."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from echo_model import Held, X, Y, ask, echo
from fake_server import Fake
from shiva_container import Container, model
from shiva_container.runner import Runner


def test_goodbye_for_good_after_the_last_answer() -> None:
    held = Held()
    with Fake() as fake, Container(held.model, servers=fake.endpoint) as container:
        peer, _ = fake.hello()
        batch_id = ask(fake, peer)
        fake.goodbye(peer, reconnect=False)
        assert not container.wait(0.1)
        held.leave.set()
        assert "outputs" in fake.result(batch_id)[0]
        assert container.wait(20), "nobody wants the model any more"
        assert len(fake.seen(b"hello")) == 1


def test_drain_answers_what_was_sent() -> None:
    held = Held()
    with Fake() as fake, Container(held.model, servers=fake.endpoint) as container:
        peer, _ = fake.hello()
        batches = [ask(fake, peer) for _ in range(2)]
        assert held.inside.wait(20)
        container.drain()
        fake.wait_for(b"draining")
        held.leave.set()
        for batch_id in batches:
            assert "outputs" in fake.result(batch_id)[0]
        assert not container.wait(0.05)
        fake.goodbye(peer, reconnect=True, reason="drained")
        assert container.wait(20)


def test_stop_leaves_what_is_queued() -> None:
    held = Held()
    with Fake() as fake:
        with Container(held.model, servers=fake.endpoint) as container:
            peer, _ = fake.hello()
            for _ in range(2):
                ask(fake, peer)
            runner: Any = container._runners[0]
            assert held.inside.wait(20)
            until = time.monotonic() + 20
            while not runner._worker._jobs and time.monotonic() < until:
                time.sleep(0.005)
            container.stop()
            until = time.monotonic() + 20
            while container._links[0].session and time.monotonic() < until:
                time.sleep(0.005)
            held.leave.set()
        runner._threads[0].join(20)
    assert held.calls == 1


def test_nothing_registers_again_while_draining() -> None:
    held = Held()
    with Fake() as fake, Container(held.model, echo(), servers=fake.endpoint) as container:
        peers = {hello["model"]: peer for peer, hello in (fake.hello(1), fake.hello(2))}
        assert container.wait_ready(20)
        batch_id = ask(fake, peers["slow"])
        assert held.inside.wait(20)
        container.drain()
        fake.wait_for(b"draining", 2)
        container._resolver._found([fake.endpoint])  # the name has been looked up again
        fake.goodbye(peers["echo"], reconnect=True)
        time.sleep(0.1)  # the other link is still busy: a chance for the first to reconnect
        held.leave.set()
        fake.result(batch_id)
        fake.goodbye(peers["slow"], reconnect=True)
        assert container.wait(20)
        assert len(fake.seen(b"hello")) == 2


def test_drain_has_an_end(caplog: pytest.LogCaptureFixture) -> None:
    with Fake() as fake, Container(echo(), servers=fake.endpoint) as container:
        fake.hello()
        assert container.wait_ready(20)
        container.drain(timeout=0.05)  # the server never says goodbye
        assert container.wait(20)
    assert "not drained in time: 0 batches are lost" in caplog.text


def test_a_runner_may_be_stopped_before_its_loop_runs() -> None:
    async def function(x: Any) -> Any:
        return x

    runner = Runner(model(name="a", inputs=[X], outputs=[Y])(function), lambda error: None, print, print)
    runner.stop(0)
    runner.start()
    runner._threads[0].join(20)
    assert not runner._threads[0].is_alive()


def test_a_container_may_be_stopped_while_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    container, start = Container(echo(), servers="127.0.0.1:9"), threading.Thread.start

    def late(thread: threading.Thread) -> None:
        if thread.name.startswith("shiva-echo"):
            container.stop()
            container.wait(0.2)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", late)
    container.start()
    assert container.wait(20)


def test_the_end_comes_even_if_cleaning_up_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with Container(echo(), servers="127.0.0.1:9") as container:
        monkeypatch.setattr(container._runners[0], "stop", lambda _: [][0])
        container.stop()
        assert container.wait(20)


def test_servers_are_told_what_may_keep_the_process_from_answering() -> None:
    """Another model that is being loaded, and a call for another server."""
    loaded, slow = threading.Event(), Held()
    late = echo(name="late")
    late.warmup(lambda: loaded.wait(20))

    def pauses(fake: Fake) -> int:
        return len([frames for _, frames in fake.seen(b"heartbeat") if frames[1:] == [b'{"pause":true}']])

    with Fake(heartbeat_ms=50) as one, Container(echo(), late, servers=one.endpoint):
        one.wait(lambda: pauses(one) > 2, "a pause while a model is loaded")
        loaded.set()
        one.hello(2)
    with (
        Fake(heartbeat_ms=50) as one,
        Fake(heartbeat_ms=50) as two,
        Container(slow.model, servers=[one.endpoint, two.endpoint]),
    ):
        (first, _), _ = one.hello(), two.hello()
        two.wait_for(b"heartbeat", 3)
        assert pauses(two) == 0
        batch = ask(one, first)
        two.wait(lambda: pauses(two) > 0, "a pause while a batch of another server is computed")
        assert pauses(one) == 0, "it is patient with its own batches"
        slow.leave.set()
        one.result(batch)


def test_warmup_comes_before_hello() -> None:
    made = echo()
    with Fake() as fake:

        @made.warmup
        def warm() -> None:
            assert not fake.seen(b"hello")
            warmed.set()

        warmed = threading.Event()
        with Container(made, servers=fake.endpoint):
            fake.hello()
            assert warmed.is_set()


def test_the_warmup_of_a_sync_model_may_be_async() -> None:
    made = echo()
    warmed = threading.Event()

    @made.warmup
    async def warm() -> None:
        await asyncio.sleep(0)
        warmed.set()

    with Fake() as fake, Container(made, servers=fake.endpoint):
        fake.hello()
        assert warmed.is_set()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_failed_warmup_ends_the_container(is_async: bool) -> None:
    made = echo()
    if is_async:

        async def function(x: Any) -> Any:
            return x

        made = model(name="a", inputs=[X], outputs=[Y])(function)

    @made.warmup
    def warm() -> None:
        raise OSError("no weights")

    with (
        Fake() as fake,
        Container(made, servers=fake.endpoint) as container,
        pytest.raises(RuntimeError, match="warm-up failed: OSError: no weights"),
    ):
        container.wait(20)
    assert not fake.seen(b"hello")


def test_an_unhealthy_model_signs_off_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    made = echo(health_interval=0.01)
    well = True

    @made.health
    def health() -> bool:
        return well

    with Fake() as fake, Container(made, servers=fake.endpoint):
        peer, _ = fake.hello()
        assert "outputs" in fake.result(ask(fake, peer))[0]
        well = False
        fake.wait_for(b"draining")
        assert len(fake.seen(b"hello")) == 1
        fake.goodbye(peer, reconnect=True)
        well = True
        peer, _ = fake.hello(2)
        assert "outputs" in fake.result(ask(fake, peer))[0]
    assert "the health hook returned False; leaving the servers" in caplog.text


@pytest.mark.parametrize("is_async", [False, True])
def test_an_exit_in_a_health_hook_is_a_failure(is_async: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def function(x: Any) -> Any:
        return x

    def health() -> None:
        if leave:
            raise SystemExit(3)

    async def health_async() -> None:
        health()

    leave = False
    made = model(name="m", inputs=[X], outputs=[Y], health_interval=0.01)(function if is_async else lambda x: x)
    made.health(health_async if is_async else health)
    with Fake() as fake, Container(made, servers=fake.endpoint):
        fake.result(ask(fake, fake.hello()[0]))  # before it is live it has nothing to drain
        leave = True
        fake.goodbye(fake.wait_for(b"draining")[0], reconnect=True)
        leave = False
        peer, _ = fake.hello(2)
        assert "outputs" in fake.result(ask(fake, peer))[0]
    assert "SystemExit: 3; leaving the servers" in caplog.text

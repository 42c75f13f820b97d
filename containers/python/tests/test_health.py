"""The process's health over HTTP, while models load, serve, wait and hang."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from echo_model import Held, X, Y, ask, echo
from fake_server import Fake, kept
from shiva_container import Container, model, serve
from shiva_container.health import Health, Settings


def get(health: Health, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://localhost:{health.port}{path}", timeout=20) as answer:
            return answer.status, json.load(answer).get("reason", "")
    except urllib.error.HTTPError as e:
        body = json.load(e)
        return e.code, body.get("reason") or body["error"]


@contextmanager
def asked(container: Container, stuck: float = 60) -> Iterator[Health]:
    health = Health(
        Settings("", 0, stuck), {"/livez": lambda: container.stuck(stuck), "/readyz": container.unready}
    )
    try:
        yield health
    finally:
        health.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in 20 s"
        time.sleep(0.005)


def test_a_model_that_loads_is_live_and_not_ready() -> None:
    loaded = threading.Event()
    made = echo()
    made.warmup(loaded.wait)
    with Fake() as fake, Container(made, servers=fake.endpoint) as container, asked(container) as health:
        assert get(health, "/livez") == (200, "")
        assert get(health, "/readyz") == (503, "loading echo/1")
        loaded.set()
        assert container.wait_ready(20)
        assert get(health, "/readyz") == (200, "")


def test_a_model_without_a_server_is_live_and_not_ready() -> None:
    with Container(echo(), servers=kept()) as container, asked(container) as health:
        until(lambda: get(health, "/readyz") == (503, "no server has registered echo/1"))
        assert get(health, "/livez") == (200, "")


def test_a_server_that_leaves_takes_readiness_with_it() -> None:
    fake = Fake()
    with Container(echo(), servers=fake.endpoint) as container, asked(container) as health:
        assert container.wait_ready(20)
        fake.close()
        until(lambda: get(health, "/readyz")[0] == 503)
        assert get(health, "/livez") == (200, "")


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_model_that_never_answers_is_not_live(concurrency: int) -> None:
    held = Held()
    made = model(name="held", inputs=[X], outputs=[Y], concurrency=concurrency)(held.model.function)
    with Fake() as fake, Container(made, servers=fake.endpoint) as container:
        peer, _ = fake.hello()
        with asked(container, stuck=60) as patient, asked(container, stuck=0.01) as health:
            assert get(health, "/livez") == (200, "")
            sent = ask(fake, peer)
            until(lambda: get(health, "/livez")[0] == 503)
            assert get(health, "/livez")[1].startswith("model held/1 has computed one batch for ")
            assert get(patient, "/livez") == (200, ""), "a long batch within the limit is no fault"
            held.leave.set()
            fake.result(sent)
            until(lambda: get(health, "/livez") == (200, ""))


def test_other_paths_are_refused() -> None:
    with Container(echo(), servers=kept()) as container, asked(container) as health:
        assert get(health, "/metrics") == (404, "no such path: expected /livez or /readyz")
        assert get(health, "/livez?verbose") == (200, "")


def test_a_client_that_says_nothing_keeps_nobody_waiting() -> None:
    with (
        Container(echo(), servers=kept()) as container,
        asked(container) as health,
        socket.create_connection(("localhost", health.port)),
    ):
        assert get(health, "/livez") == (200, "")


@pytest.mark.parametrize(
    ("address", "environment", "settings"),
    [
        (None, {}, None),
        ("", {"SHIVA_HEALTH": ":1"}, None),
        (None, {"SHIVA_HEALTH": ":8081"}, Settings("", 8081, 120)),
        ("[::1]:80", {"SHIVA_HEALTH": ":1", "SHIVA_HEALTH_STUCK": "0.5"}, Settings("::1", 80, 0.5)),
    ],
)
def test_settings(address: str | None, environment: dict[str, str], settings: Settings | None) -> None:
    assert Settings.read(address, environment) == settings


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"SHIVA_HEALTH": "8081"}, 'expected "host:port" or ":port", got \'8081\''),
        ({"SHIVA_HEALTH": ":65536"}, "got ':65536'"),
        ({"SHIVA_HEALTH": ":1", "SHIVA_HEALTH_STUCK": "soon"}, "a number of seconds above 0, got 'soon'"),
        ({"SHIVA_HEALTH": ":1", "SHIVA_HEALTH_STUCK": "0"}, "got '0'"),
    ],
)
def test_wrong_settings_are_named(environment: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match="expected") as error:
        Settings.read(None, environment)
    assert text in str(error.value)


def test_serve_takes_it_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHIVA_HEALTH", "nowhere")
    made: Any = echo()
    with pytest.raises(ValueError, match="got 'nowhere'"):
        serve(made, servers=kept())

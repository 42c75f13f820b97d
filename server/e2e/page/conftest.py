"""A server with models, load and identities, and Chromium to open its page.

`make e2e` builds the programs. PAGE_PICTURES is a folder to which the pictures of the
README are written; by default they are not kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

TOP = Path(__file__).parents[3]
PATIENCE = 180.0
"""Seconds to wait for an event that must happen, on the slowest machine."""
expect.set_options(timeout=1000 * PATIENCE)

FOLDS = (
    "Models", "Pipelines", "Streams", "Routes", "Applications", "Containers", "Without a result",
    "Over a quota", "Further findings", "Diagnosis", "Requests", "Try it", "Batches", "Replicas", "Newest answers",
    "Settings in effect",
)  # fmt: skip
"""The titles of what folds, but for those that are open at first."""

TOKENS = {"operator": "operator-4f0cBq9Z", "reader": "reader-1hZ8mWq2", "camera": "camera-7pTt3nKd"}

CONFIG = """
[tcp]
listen = "{tcp}"
connections = 1024
[rest]
listen = []
[grpc]
listen = []
[containers]
listen = "{containers}"
[admin]
listen = "{admin}"
[model.sharp]
objective = "20ms"
deadline = "50ms"
queue_rows = 64
[[identity]]
name = "operator"
token_sha256 = "{operator}"
may = ["admin:write", "infer", "feedback", "load"]
[[identity]]
name = "reader"
token_sha256 = "{reader}"
may = ["admin:read", "infer:digits"]
[[identity]]
name = "camera"
token_sha256 = "{camera}"
may = ["infer"]
quota = {{ requests_per_second = 500 }}
[[identity]]
name = "anonymous"
may = ["infer", "serve"]
[[container]]
name = "sharp"
command = ["./bin/selection-container", "sharp", "1"]
[[container]]
name = "inked"
command = ["./bin/selection-container", "inked", "1"]
[[container]]
name = "blurred"
command = ["./bin/selection-container", "blurred", "1"]
"""


def until(what: str, holds: Callable[[], Any]) -> Any:
    """Waits for something, and returns it."""
    end = time.monotonic() + PATIENCE
    while not (got := holds()):
        assert time.monotonic() < end, f"waited {PATIENCE:.0f} s for {what}"
        time.sleep(0.02)
    return got


def port() -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{s.getsockname()[1]}"


class Server:
    """A shivad on its own ports, which keeps them when it is restarted."""

    def __init__(self, folder: Path) -> None:
        self.addresses = {door: port() for door in ("tcp", "containers", "admin")}
        self.url = f"http://{self.addresses['admin']}"
        self.config = folder / "shivad.toml"
        hashes = {name: hashlib.sha256(token.encode()).hexdigest() for name, token in TOKENS.items()}
        self.config.write_text(CONFIG.format(**self.addresses, **hashes))
        self.log = (folder / "log").open("w+")
        self.others: list[subprocess.Popen[bytes]] = []
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(["bin/shivad", "--config", self.config], cwd=TOP, stderr=self.log)
        until("the server", lambda: self.process.poll() is not None or self.alive())
        assert self.process.poll() is None, self.said()

    def alive(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/livez", timeout=5):
                return True
        except OSError:
            return False

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE)

    def said(self) -> str:
        self.log.flush()
        return Path(self.log.name).read_text()

    def run(self, *command: str) -> subprocess.Popen[bytes]:
        """Starts a container, or a client."""
        env = os.environ | {
            "SHIVA_SERVERS": self.addresses["containers"],
            "SHIVACTL_ADDR": self.addresses["tcp"],
            "SHIVACTL_ADMIN": self.addresses["admin"],
        }
        one = subprocess.Popen(command, cwd=TOP, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.others.append(one)
        return one

    def start_digits(self) -> None:
        """Starts a container that is not restarted."""
        self.digits = self.run("bin/digits-container")

    def open(self, path: str, body: object = None, who: str = "operator", method: str | None = None) -> Any:
        """Sends a request to the admin door; the caller must close the answer."""
        request = urllib.request.Request(
            f"{self.url}{path}", data=None if body is None else json.dumps(body).encode(), method=method
        )
        request.add_header("Authorization", f"Bearer {TOKENS[who]}")
        request.add_header("Content-Type", "application/json")
        return urllib.request.urlopen(request, timeout=PATIENCE)

    def ask(self, path: str, body: object = None, who: str = "operator", method: str | None = None) -> Any:
        with self.open(path, body, who, method) as answer:
            return json.load(answer)

    def replicas(self, model: str) -> int:
        return sum(m["replicas"] for m in self.ask("/v1/models")["models"] if m["name"] == model)

    def close(self) -> None:
        for one in self.others:
            one.kill()
            one.wait()
        self.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    s = Server(tmp_path_factory.mktemp("server"))
    try:
        yield s
    finally:
        s.close()


@pytest.fixture(scope="session")
def loaded(server: Server) -> Server:
    """The server with a model under load, cameras, and an application that has learned."""
    server.start_digits()
    until("the models", lambda: all(server.replicas(m) for m in ("digits", "sharp", "inked", "blurred")))
    server.ask(
        "/v1/apps",
        {
            "name": "selection",
            "models": ["sharp", "inked", "blurred"],
            "policy": "exp4",
            "params": {"eta": 0.5},
            "slo": "5s",
        },
    )
    server.run("bin/shivactl", "bench", "digits", "--rate", "50", "--for", "10m")
    server.run("bin/shivactl", "bench", "sharp", "--rate", "400", "--for", "10m")
    server.run("bin/shivactl", "bench", "sharp", "--streams", "3", "--fps", "20", "--keep", "latest", "--for", "10m")
    server.run("bin/shivactl", "bench", "selection", "--rate", "20", "--for", "10m")
    for row in heldout()[:20]:
        server.ask("/v1/apps/selection/feedback", {"input": [row[0]], "label": row[1]})
    return server


def heldout() -> list[tuple[list[list[int]], int]]:
    """Pictures of 8x8 pixels, and their labels."""
    data = (TOP / "examples/digits/heldout.u8").read_bytes()
    return [
        ([list(data[at + 8 * y : at + 8 * y + 8]) for y in range(8)], data[at + 64]) for at in range(0, len(data), 65)
    ]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as p:
        shell = shutil.which("chromium-headless-shell")
        assert shell, "there is no chromium-headless-shell, of Debian's package of that name: make programs"
        # Chromium's own sandbox does not run as root.
        b = p.chromium.launch(executable_path=shell, args=["--no-sandbox"])
        yield b
        b.close()


@pytest.fixture
def open_page(browser: Browser, server: Server) -> Iterator[Callable[..., Page]]:
    """Opens a page, signed in, with all that folds open unless it is told otherwise. It must log
    nothing in the console, and use no other host."""
    faults: list[str] = []
    pages: list[Page] = []

    def open_one(path: str = "#/", who: str = "operator", unfolded: bool = True, **options: Any) -> Page:
        one = browser.new_page(**{"viewport": {"width": 1280, "height": 900}} | options)
        one.set_default_timeout(1000 * PATIENCE)
        pages.append(one)
        if unfolded:  # most tests look at all there is
            all_open = json.dumps(dict.fromkeys(FOLDS, True))
            one.add_init_script(f"localStorage['shivad.folds'] ??= '{all_open}'")
        one.on("pageerror", lambda error: faults.append(str(error)))
        # Errors without an exception, as of a ResizeObserver that changes what it observes.
        one.add_init_script("addEventListener('error', (event) => event.error || console.error(event.message))")

        def said(message: Any) -> None:
            if message.type == "error" and "Failed to load resource" not in message.text:
                faults.append(message.text)

        def asked(request: Any) -> None:
            if not request.url.startswith(server.url) or any(t in request.url for t in TOKENS.values()):
                faults.append(request.url)

        one.on("console", said)
        one.on("request", asked)
        one.goto(f"{server.url}/{path}")
        if who:
            one.get_by_label("Token").fill(TOKENS[who])
            one.get_by_role("dialog").get_by_role("button", name="Sign in").click()
            one.locator("#health:not(.off)").wait_for()
        return one

    yield open_one
    for one in pages:
        one.close()
    assert not faults

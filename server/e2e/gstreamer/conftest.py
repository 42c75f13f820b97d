"""A server with models, and gst-launch-1.0 with the element; `make gst-test` builds what is needed.

GStreamer has its elements in Python run by the Python of the system, so the element is not tested
with the one that runs this.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).parent
TOP = HERE.parents[2]
PATIENCE = 120.0
"""Seconds to wait for an event that must happen, on the slowest machine."""

CONFIG = """
[tcp]
listen = "{tcp}"
[rest]
listen = []
[grpc]
listen = []
[containers]
listen = "{containers}"
expected_within = "0s"
[admin]
listen = "{admin}"
"""
TOKENS = """
[[identity]]
name = "camera"
token_sha256 = "{camera}"
may = ["infer"]
[[identity]]
name = "guest"
token_sha256 = "{guest}"
may = ["admin:read"]
[[identity]]
name = "anonymous"
may = ["serve", "admin:read"]
"""


def until(what: str, holds: Callable[[], Any]) -> Any:
    """Wait for something, and return it."""
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
    """A shivad on its own ports, which keeps them when it is restarted, and its models."""

    def __init__(self, folder: Path, more: str = "") -> None:
        addresses = {door: port() for door in ("tcp", "containers", "admin")}
        self.tcp, self._admin = addresses["tcp"], addresses["admin"]
        self._config = folder / "shivad.toml"
        self._config.write_text(CONFIG.format(**addresses) + more)
        self._log = (folder / "log").open("w+")
        self.start()
        env = os.environ | {"SHIVA_SERVERS": addresses["containers"]}
        self._models = subprocess.Popen([sys.executable, HERE / "models.py"], env=env, stderr=self._log)

    def start(self) -> None:
        command = [TOP / "bin/shivad", "--config", self._config]
        self.process = subprocess.Popen(command, cwd=TOP, stderr=self._log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)

    def wait_ready(self) -> None:
        until("the models", lambda: {"ball", "slow", "small"} <= self._ready())

    def _ready(self) -> set[str]:
        try:
            with urllib.request.urlopen(f"http://{self._admin}/v1/models", timeout=PATIENCE) as answer:
                return {m["name"] for m in json.load(answer)["models"] if m["ready"]}
        except OSError:
            return set()

    def close(self) -> None:
        self._models.kill()
        self._models.wait(PATIENCE)
        self.process.send_signal(signal.SIGCONT)
        self.kill()
        self._log.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    one = Server(tmp_path_factory.mktemp("server"))
    try:
        one.wait_ready()
        yield one
    finally:
        one.close()


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which GStreamer finds the element, without that of this test's Python."""
    keep = {key: os.environ[key] for key in ("HOME", "LANG", "TMPDIR") if key in os.environ}
    registry = str(tmp_path_factory.mktemp("registry") / "registry")
    plugins = str(TOP / "shiva/python/src/shiva_client/gstreamer")
    return keep | {"PATH": "/usr/bin:/bin", "GST_REGISTRY": registry, "GST_PLUGIN_PATH": plugins, "NO_COLOR": "1"}


class Pipeline:
    """A gst-launch-1.0 whose elements write their input to files in a folder."""

    def __init__(self, folder: Path, environment: dict[str, str], description: str) -> None:
        self.folder = folder
        self._log = (folder / "log").open("w+")
        command = ["gst-launch-1.0", "-e", *description.split()]
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=self._log, stderr=subprocess.STDOUT
        )

    def said(self) -> str:
        return (self.folder / "log").read_text()

    def wait(self) -> int:
        try:
            return self.process.wait(PATIENCE)
        finally:
            assert "Traceback" not in self.said(), self.said()

    def interrupt(self) -> int:
        """Ctrl-C, on which -e ends the video."""
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def records(self) -> list[Any]:
        """The complete lines of the results."""
        path = self.folder / "results"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def frames(self, name: str, width: int, height: int) -> np.ndarray:
        """The pictures in a file: their lines begin at multiples of four bytes."""
        stride = (width * 3 + 3) // 4 * 4
        data = np.fromfile(self.folder / name, np.uint8)
        data = data[: len(data) // (height * stride) * height * stride]
        return data.reshape(-1, height, stride)[:, :, : width * 3].reshape(-1, height, width, 3)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE)
        print(self.said())
        self._log.close()


Launch = Callable[[str], Pipeline]


@pytest.fixture
def launch(tmp_path: Path, environment: dict[str, str]) -> Iterator[Launch]:
    started: list[Pipeline] = []

    def run(description: str) -> Pipeline:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Pipeline(folder, environment, description))
        return started[-1]

    yield run
    for one in started:
        one.close()

"""The server under test, and the processes that the tests start.

SHIVA_TCP, SHIVA_REST, SHIVA_GRPC, SHIVA_CONTAINERS and SHIVA_ADMIN tell where a running shivad
listens; the Go test that starts one (server/e2e) sets them. It supervises a container in Go, of the
model "digits".
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from wire_client import Client, Message

HERE = Path(__file__).parent
PATIENCE = 60.0
"""Seconds to wait for an event that must happen, on the slowest machine."""


class Server:
    """The addresses of the running shivad."""

    def __init__(self) -> None:
        try:
            self.tcp, self.unix, self.rest, self.grpc, self.containers, self.admin = (
                os.environ["SHIVA_" + name] for name in ("TCP", "UNIX", "REST", "GRPC", "CONTAINERS", "ADMIN")
            )
        except KeyError as e:
            pytest.exit(f"{e} is not set: these tests are run by `make e2e`", returncode=2)

    def address(self, rpc: str) -> str:
        """Where containers of this generation connect."""
        return os.environ.get("SHIVA_CONTAINERS_" + rpc.upper()) or self.containers

    def client(self) -> Client:
        return Client(self.tcp, timeout=PATIENCE)

    def ready(self) -> set[str]:
        """The models that have a live replica, as name/version."""
        with urllib.request.urlopen(f"http://{self.admin}/v1/models", timeout=PATIENCE) as answer:
            models = json.load(answer)["models"]
        return {f"{m['name']}/{m['version']}" for m in models if m["ready"]}

    def wait_ready(self, *models: str) -> None:
        wait(lambda: set(models) <= self.ready(), f"{models} ready")

    def wait_gone(self, *models: str) -> None:
        wait(lambda: not set(models) & self.ready(), f"{models} gone")


def wait(test: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not test():
        if time.monotonic() > until:
            raise AssertionError(f"{what}: not within {PATIENCE:g} s")
        time.sleep(0.02)


class Process:
    """A container process; its output is shown if it ended before it was stopped."""

    def __init__(self, log: Path, *command: str, **environment: str) -> None:
        self._log = log.open("w+")
        self._process = subprocess.Popen(
            [sys.executable, *command],
            cwd=HERE,
            env={**os.environ, **environment},
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)

    def terminate(self) -> int:
        """Send SIGTERM, and return the exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(PATIENCE)

    def wait(self) -> int:
        return self._process.wait(PATIENCE)

    def output(self) -> str:
        return Path(self._log.name).read_text()

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()
        self._log.close()


Start = Callable[..., Process]


@pytest.fixture(scope="session")
def server() -> Server:
    return Server()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def start(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start a Python file of this directory with arguments; it ends with the module."""
    started: list[Process] = []

    def run(*command: str, **environment: str) -> Process:
        log = tmp_path_factory.mktemp("log") / "output"
        process = Process(log, *command, SHIVA_SERVERS=server.containers, **environment)
        started.append(process)
        return process

    yield run
    for process in started:
        process.close()
        print(process.output())


def values(tensors: list[Any]) -> list[Any]:
    return [tensor.tolist() for tensor in tensors]


def expect_error(answer: Message, kind: str, code: int, retryable: bool, *texts: str) -> None:
    assert answer.namespace == "!error", answer
    assert answer.tensors == []
    got = {key: answer.metadata.get(key) for key in ("type", "code", "retryable")}
    assert got == {"type": kind, "code": code, "retryable": retryable}, answer.metadata
    for text in texts:
        assert text in answer.metadata["message"]

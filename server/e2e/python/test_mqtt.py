"""The examples robot and mqtt: a camera, a model, and a real broker that learns what was seen."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import HERE, wait

ROOT = HERE.parents[2]
if os.environ.get("SHIVA_REQUIRE") != "all":  # there it must not be missing
    pytest.importorskip("paho.mqtt.client")
    if not shutil.which("mosquitto", path=os.environ["PATH"] + ":/usr/sbin"):
        pytest.skip("there is no mosquitto", allow_module_level=True)
import paho.mqtt.client as mqtt

Run = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Start a program in its own group, which ends with the test."""
    started: list[subprocess.Popen[bytes]] = []
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"

    def start(*command: str) -> subprocess.Popen[bytes]:
        with (tmp_path / f"{len(started)}.log").open("w") as log:
            environment = {**os.environ, "PATH": path}
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
        started.append(process)
        return process

    yield start
    for process in started:
        end(process)
    for log in sorted(tmp_path.glob("*.log")):
        print(log.name, log.read_text()[-2000:])


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Cell:
    """What a subscriber knows of the cell."""

    def __init__(self, port: int) -> None:
        self.state, self.answers, self.last = "", 0, dict[str, Any]()
        self._client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
        self._client.on_connect = lambda client, *_: client.subscribe("cells/belt-3/#")
        self._client.on_message = self._take
        self._client.reconnect_delay_set(1, 1)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def _take(self, client: mqtt.Client, data: Any, message: mqtt.MQTTMessage) -> None:
        if message.topic.endswith("/availability"):
            self.state = message.payload.decode()
        else:
            self.last = json.loads(message.payload)
            self.answers += 1

    def expect(self, state: str, after: str) -> None:
        wait(lambda: self.state == state, f"{state} after {after}")
        if state == "online":
            before = self.answers
            wait(lambda: self.answers > before + 2, f"answers after {after}")

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_broker_learns_what_the_camera_saw(run: Run, tmp_path: Path) -> None:
    at, door = port(), f"127.0.0.1:{port()}"
    config = tmp_path / "mosquitto.conf"
    config.write_text(f"listener {at} 127.0.0.1\nallow_anonymous true\n")

    def broker() -> subprocess.Popen[bytes]:
        process = run("mosquitto", "-c", str(config))
        wait(
            lambda: subprocess.run(["mosquitto_pub", "-p", str(at), "-t", "x", "-n"], check=False).returncode == 0,
            "broker",
        )
        return process

    def server() -> subprocess.Popen[bytes]:
        doors = ["--tcp", door, "--rest", "", "--grpc", "", "--admin", "", "--containers", "127.0.0.1:0"]
        return run(str(ROOT / "bin" / "shivad"), "--config", str(ROOT / "examples" / "robot" / "cell.toml"), *doors)

    def camera() -> subprocess.Popen[bytes]:
        return run(
            sys.executable, str(ROOT / "examples" / "robot" / "camera.py"), "--server", door, "--frames", "100000"
        )

    first = broker()
    program = str(ROOT / "examples" / "mqtt" / "publish.py")
    publisher = run(sys.executable, program, "--server", door, "--broker", f"127.0.0.1:{at}", "--patience", "1")
    cell = Cell(at)
    try:
        cell.expect("offline", "the start, without a server")
        serving = server()

        def answered() -> bool:  # a camera ends if there is no model yet
            looking.append(camera()) if not looking or looking[-1].poll() is not None else None
            return cell.state == "online"

        looking: list[subprocess.Popen[bytes]] = []
        wait(answered, "a camera's answers")
        cell.expect("online", "the first picture")
        assert [row[0] for row in cell.last["found"]] == [0, 1, 2]
        assert cell.last["seq"] >= 0

        end(looking[-1])
        cell.expect("offline", "the camera's end")
        looking.append(camera())
        cell.expect("online", "the camera's return")

        end(first)
        cell.state = "unknown"
        broker()
        cell.expect("online", "the broker's return")

        end(serving)
        cell.expect("offline", "the server's end")
        serving = server()
        wait(answered, "the server's return")

        end(publisher)
        cell.expect("offline", "the publisher's end")
    finally:
        cell.close()

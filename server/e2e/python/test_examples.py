"""The examples in Python, started as their README describes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from conftest import HERE, Server, Start, expect_error, values
from wire_client import Client, Message

EXAMPLES = HERE.parents[2] / "examples"
NAMES = ["digits/container", "python/scikit_learn", "python/plain_numpy", "python/strings", "camera/container"]


@pytest.fixture(scope="module", autouse=True)
def containers(server: Server, start: Start) -> None:
    for name in ("scikit_learn", "plain_numpy", "strings"):
        start(str(EXAMPLES / "python" / f"{name}.py"))
    start(str(EXAMPLES / "camera" / "container.py"))
    server.wait_ready("iris/1", "blur/1", "slug/1", "detector/1")


def test_scikit_learn(client: Client) -> None:
    answer = client.ask("iris", np.array([[5.1, 3.5, 1.4, 0.2], [6.5, 3.0, 5.8, 2.2]]))
    assert answer.metadata["__texts__"] == {"species": ["setosa", "virginica"]}, answer.metadata
    (probabilities,) = answer.tensors
    assert probabilities.shape == (2, 3)
    assert np.allclose(probabilities.sum(axis=1), 1)


def test_plain_numpy(client: Client) -> None:
    picture = np.zeros((3, 4), "f4")
    picture[1, 1] = 9
    for i in range(4):
        client.send(Message("blur", {"id": i}, [np.full((3, 4), np.nan, "f4") if i == 2 else picture]))
    for i in range(4):
        answer = client.receive()
        if i == 2:
            expect_error(answer, "ContainerFailed", 502, False, "no number")
        else:
            assert values(answer.tensors) == [[[1, 1, 1, 0]] * 3], answer.metadata
    assert client.ask("blur", np.ones((2, 2), "f4")).tensors[0].tolist() == [[1, 1], [1, 1]]


def test_strings(client: Client) -> None:
    answer = client.ask("slug", __texts__={"title": ["Crème brûlée, please!", "R2 D2"]})
    assert answer.metadata["__texts__"] == {"slug": ["creme-brulee-please", "r2-d2"]}, answer.metadata
    answer = client.ask("slug", __texts__={"title": "R2 D2"}, parameters={"separator": "_"})
    assert answer.metadata["__texts__"] == {"slug": "r2_d2"}, answer.metadata
    expect_error(client.ask("slug", __texts__={"title": "?"}), "ContainerFailed", 502, False, "no letter or digit")


def camera(server: Server, *args: str) -> dict[str, tuple[int, int, float]]:
    """Run the example. For each keep: frames shown, frames superseded, age of the last one."""
    command = [sys.executable, str(EXAMPLES / "camera" / "camera.py"), "--server", server.tcp, *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = re.findall(r"keep (\w+): (\d+) frames shown, (\d+) superseded, the last was ([\d.]+) s old", done.stdout)
    return {keep: (int(shown), int(superseded), float(age)) for keep, shown, superseded, age in lines}


def test_a_camera_falls_behind_unless_the_newest_frame_wins(server: Server, tmp_path: Path) -> None:
    picture = tmp_path / "camera.png"
    lines = camera(server, "--seconds", "2", "--out", str(picture))
    assert lines["latest"][1] > 0 == lines["all"][1]
    assert lines["latest"][2] < lines["all"][2]
    assert cv2.imread(str(picture)).shape == (432, 864, 3)


def test_a_camera_of_an_address(server: Server, tmp_path: Path) -> None:
    writer = cv2.VideoWriter(str(tmp_path / "film.avi"), cv2.VideoWriter.fourcc(*"MJPG"), 30, (64, 48))
    for i in range(10):
        writer.write(np.full((48, 64, 3), 25 * i, "u1"))
    writer.release()
    assert set(camera(server, f"file:{tmp_path}/film.avi", "--seconds", "0.5")) == {"latest", "all"}


def test_a_camera_that_is_not_there(server: Server) -> None:
    command = [sys.executable, str(EXAMPLES / "camera" / "camera.py"), "--server", server.tcp, "99"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "99: OpenCV reads no video there")


@pytest.mark.parametrize("picture", ["client/wire.svg", "device/frame.svg"])
def test_pictures_of_messages(server: Server, picture: str) -> None:
    folder = picture.partition("/")[0]
    command = [sys.executable, str(EXAMPLES / "frames.py"), folder, *([server.tcp] if folder == "client" else [])]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert done.stdout == (EXAMPLES / picture).read_bytes(), f"{picture} differs: run examples/frames.py"


def test_the_picture_of_models_in_python(server: Server) -> None:
    command = [sys.executable, str(EXAMPLES / "python" / "picture.py"), server.tcp]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert done.stdout == (EXAMPLES / "python" / "answers.svg").read_bytes(), "answers.svg differs: run picture.py"


@pytest.mark.parametrize("name", NAMES)
def test_check_without_a_server(name: str) -> None:
    command = [sys.executable, "-m", "shiva_container", "check", str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

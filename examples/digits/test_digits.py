"""The checked-in files are what train.py makes, and the Python container's answers are right."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from pathlib import Path

import container
import numpy as np
import pytest
import train

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def made() -> dict[str, bytes]:
    return train.files()


def test_the_files_are_what_the_script_makes(made: dict[str, bytes]) -> None:
    for name, content in made.items():
        assert (HERE / name).read_bytes() == content, f"{name} differs: run examples/digits/train.py"
    images = {f"images/{path.name}" for path in (HERE / "images").iterdir()}
    assert images == {name for name in made if name.startswith("images/")}


def heldout() -> tuple[np.ndarray, np.ndarray]:
    rows = np.frombuffer((HERE / "heldout.u8").read_bytes(), np.uint8).reshape(-1, 65)
    return rows[:, :64].reshape(-1, 8, 8), rows[:, 64]


def test_held_out_images_were_never_trained_on() -> None:
    images, _ = train.data()
    seen, held = train.split(images)
    assert np.array_equal(held, heldout()[0])
    assert len(seen) + len(held) == len(images)


def test_onnx_runtime_reaches_97_percent() -> None:
    images, labels = heldout()
    scores, label = container.digits(images)
    assert np.array_equal(label, scores.argmax(axis=1))
    assert (label == labels).mean() >= 0.97


def test_onnx_runtime_agrees_with_training() -> None:
    images, _ = heldout()
    scores, _ = container.digits(images[:20])
    want = np.frombuffer((HERE / "scores.f32").read_bytes(), "<f4").reshape(20, 10)
    assert np.abs(scores - want).max() < 1e-5


def test_the_pngs_are_the_held_out_images() -> None:
    images, labels = heldout()
    lines = (HERE / "labels.txt").read_text().splitlines()
    assert lines == [f"{n:02}.png {labels[n]}" for n in range(20)]
    for n in range(20):
        data = (HERE / "images" / f"{n:02}.png").read_bytes()
        (size,) = struct.unpack_from(">I", data, 33)
        lines_of_pixels = np.frombuffer(zlib.decompress(data[41 : 41 + size]), np.uint8).reshape(8, 9)
        assert np.array_equal(lines_of_pixels[:, 1:], images[n])


def test_the_container_passes_its_check() -> None:
    command = [sys.executable, "-m", "shiva_container", "check", str(HERE / "container.py"), "--rows", "64"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "64 rows in" in done.stdout
    assert "warning" not in done.stdout

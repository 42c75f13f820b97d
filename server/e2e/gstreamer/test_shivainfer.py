"""The element shivainfer in pipelines of gst-launch-1.0."""

from __future__ import annotations

import hashlib
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from conftest import HERE, PATIENCE, TOKENS, Launch, Server, port, until
from models import box

WIDTH, HEIGHT = 321, 240  # lines of an odd number of bytes
BALL = "pattern=ball animation-mode=frames foreground-color=0xffff8000"


def camera(options: str, width: int = WIDTH, height: int = HEIGHT) -> str:
    return f"videotestsrc {BALL} {options} ! video/x-raw,format=RGB,width={width},height={height},framerate=30/1"


def results(name: str = "i") -> str:
    return f"{name}.results ! filesink location=results buffer-mode=unbuffered"


def green(frame: np.ndarray, found: list[int]) -> bool:
    """Whether a box is drawn around the detected object, and nothing inside it."""
    x, y, width, height = found
    middle_x, middle_y = x + width // 2, y + height // 2
    lines = [frame[y, middle_x], frame[y + height - 1, middle_x], frame[middle_y, x], frame[middle_y, x + width - 1]]
    green = all(line[1] > 110 and line[1] > line[2] + 40 for line in lines)
    return green and tuple(frame[middle_y, middle_x]) == (255, 128, 0)


def test_every_picture_has_its_own_answer(server: Server, launch: Launch) -> None:
    """With keep = all, the JSON is that of the picture, and its boxes are drawn on it."""
    p = launch(
        f"{camera('num-buffers=20')} ! tee name=t ! queue ! filesink location=before "
        f"t. ! queue ! shivainfer name=i keep=all model=ball location={server.tcp} "
        f"! filesink location=after {results()}"
    )
    assert p.wait() == 0
    before, after = p.frames("before", WIDTH, HEIGHT), p.frames("after", WIDTH, HEIGHT)
    assert len(before) == len(after) == len(p.records()) == 20
    for i, record in enumerate(p.records()):
        found = box(before[i]).tolist()
        assert (record["seq"], record["model"], record["width"], record["height"]) == (i, "ball", WIDTH, HEIGHT)
        assert record["pts"] == i * 1_000_000_000 // 30
        assert record["outputs"]["boxes"] == found
        assert record["outputs"]["mean"] == pytest.approx([before[i].mean()])
        assert green(after[i], found[0])
        # Nothing else is drawn except the line of text above.
        x, y, width, height = found[0]
        away = (before[i] != after[i]).any(axis=2)
        away[max(0, y - 3) : y + height + 3, max(0, x - 3) : x + width + 3] = False
        assert away[:20, :100].any()
        away[:20, :100] = False
        assert not away.any()


def test_a_slow_model_does_not_hold_up_the_video(server: Server, launch: Launch) -> None:
    """With keep = latest, few pictures are answered, and the last after the video has ended."""
    p = launch(
        f"{camera('is-live=true num-buffers=45')} ! tee name=t ! queue ! filesink location=before "
        f"t. ! queue ! shivainfer name=i model=slow location={server.tcp} ! filesink location=after {results()}"
    )
    assert p.wait() == 0
    before, after = p.frames("before", WIDTH, HEIGHT), p.frames("after", WIDTH, HEIGHT)
    assert len(before) == len(after) == 45
    answered = [record["seq"] for record in p.records()]
    assert answered == sorted(set(answered))
    assert len(answered) < 45 and answered[-1] == 44
    assert all(record["outputs"]["boxes"] == box(before[record["seq"]]).tolist() for record in p.records())
    drawn = [i for i in range(45) if (before[i] != after[i]).any()]
    assert drawn and 0 not in drawn


def test_a_server_that_hangs_does_not_hold_up_the_video(server: Server, launch: Launch) -> None:
    """Nor does it delay the end for longer than the timeout."""
    server.process.send_signal(signal.SIGSTOP)
    try:
        for keep in ("latest", "all"):
            p = launch(
                f"{camera('num-buffers=60', 1280, 720)} "
                f"! shivainfer name=i model=slow keep={keep} timeout=300 location={server.tcp} "
                f"! filesink location=after {results()}"
            )
            assert p.wait() == 0
            assert len(p.frames("after", 1280, 720)) == 60
            assert not p.records()
            assert "slow: no answer from" in p.said() and "within 300 ms, as the property timeout says" in p.said()
    finally:
        server.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("keep", ["latest", "all"])
def test_a_server_that_is_killed_and_comes_back(server: Server, launch: Launch, keep: str) -> None:
    p = launch(
        f"{camera('is-live=true')} ! shivainfer name=i model=ball keep={keep} location={server.tcp} "
        f"! filesink location=after buffer-mode=unbuffered {results()}"
    )
    until("answers", p.records)
    server.kill()
    until("a warning", lambda: "WARNING: from element /GstPipeline:pipeline0/ShivaInfer:i: ball: " in p.said())
    answered, shown = len(p.records()), len(p.frames("after", WIDTH, HEIGHT))
    until("pictures without a server", lambda: len(p.frames("after", WIDTH, HEIGHT)) > shown + 10)
    assert len(p.records()) <= answered + 1  # one was on its way to the file
    last = p.frames("after", WIDTH, HEIGHT)[-1].astype(int)
    assert not (last[:, :, 1] > last[:, :, 0] + 40).any(), "boxes of before are not taken for boxes of now"
    server.start()
    server.wait_ready()
    answered = len(p.records())
    until("answers again", lambda: len(p.records()) > answered + 3)
    assert p.interrupt() == 0
    assert p.said().count("WARNING: ") < 10, "one for each kind of trouble, not for each picture"
    assert all(record["outputs"]["boxes"] for record in p.records())


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        (
            "model=ball location={nobody}",
            ["Connection refused", "expected a server at {nobody}, as the property location says"],
        ),
        (
            "model=bell location={tcp}",
            ["bell: not found: ", "expected the name of a model of the server in the property model"],
        ),
        ("model=small location={tcp}", ["small: invalid input: ", "48, 64, 3]", "the model got uint8 [240, 321, 3]"]),
    ],
)
@pytest.mark.parametrize("keep", ["latest", "all"])
def test_what_fails_is_said_once_and_the_video_goes_on(
    server: Server, launch: Launch, options: str, texts: list[str], keep: str
) -> None:
    names = {"tcp": server.tcp, "nobody": port()}
    p = launch(
        f"{camera('num-buffers=30')} ! shivainfer name=i keep={keep} {options.format(**names)} "
        f"! filesink location=after {results()}"
    )
    assert p.wait() == 0
    assert len(p.frames("after", WIDTH, HEIGHT)) == 30
    assert not p.records()
    assert p.said().count("WARNING: from element") == 1
    for text in texts:
        assert text.format(**names) in p.said()


def test_the_end_of_the_pipeline_if_that_is_asked(launch: Launch) -> None:
    nobody = port()
    p = launch(
        f"{camera('is-live=true')} ! shivainfer name=i model=ball stop-on-error=true location={nobody} "
        f"! fakesink {results()}"
    )
    assert p.wait() != 0
    assert f"ERROR: from element /GstPipeline:pipeline0/ShivaInfer:i: ball: {nobody}: " in p.said()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("", "the property model is empty, expected the name of a model of the server"),
        ("model=ball keep=newest", "keep is 'newest', expected \"latest\", \"all\" or a positive number"),
        ("model=ball keep=0", "keep is 0, expected"),
        ("model=ball location=here:port", "expected a port after the colon, got 'port'"),
        ("model=ball boxes=yxyx", "the property boxes is 'yxyx', expected xywh or xyxy"),
    ],
)
def test_properties_that_cannot_be_meant(launch: Launch, options: str, text: str) -> None:
    p = launch(f"{camera('num-buffers=3')} ! shivainfer {options} ! fakesink")
    assert p.wait() != 0
    assert text in p.said()


def test_tokens(tmp_path: Path, launch: Launch) -> None:
    tokens = {"camera": "camera-7fK2q", "guest": "guest-1hZ8m"}
    server = Server(
        tmp_path, TOKENS.format(**{name: hashlib.sha256(t.encode()).hexdigest() for name, t in tokens.items()})
    )
    try:
        server.wait_ready()
        for token, fault in (
            (
                "token=somebody-else",
                ["ball: Unauthenticated: ", "expected a token that the server knows, in the property token"],
            ),
            ("token=guest-1hZ8m", ["ball: PermissionDenied: ", "expected a token whose identity may use the model"]),
            ("", ["ball: Unauthenticated: ", "expected a token that the server knows"]),
            ("token=camera-7fK2q", []),
        ):
            p = launch(
                f"{camera('num-buffers=5')} ! shivainfer name=i keep=all model=ball {token} location={server.tcp} "
                f"! fakesink {results()}"
            )
            assert p.wait() == 0
            assert len(p.records()) == (0 if fault else 5)
            assert all(text in p.said() for text in fault)
            assert "camera-7fK2q" not in p.said()
    finally:
        server.close()


@pytest.mark.parametrize("keep", ["latest", "all"])
def test_a_change_of_size(server: Server, launch: Launch, keep: str) -> None:
    first, second = camera("num-buffers=20"), camera("num-buffers=20", 64, 48)
    p = launch(
        f"concat name=c ! shivainfer name=i model=ball keep={keep} location={server.tcp} "
        f"! filesink location=after {results()} "
        f"{first} ! c. {second} ! c."
    )
    assert p.wait() == 0
    sizes = {record["seq"]: (record["width"], record["height"]) for record in p.records()}
    assert all(size == ((WIDTH, HEIGHT) if seq < 20 else (64, 48)) for seq, size in sizes.items())
    assert max(sizes) == 39
    if keep == "all":
        assert list(sizes) == list(range(40))
        first = np.frombuffer((p.folder / "after").read_bytes()[: 20 * 964 * HEIGHT], np.uint8)
        first = first.reshape(20, HEIGHT, 964)[:, :, : 3 * WIDTH].reshape(20, HEIGHT, WIDTH, 3)
        assert all(green(first[record["seq"]], record["outputs"]["boxes"][0]) for record in p.records()[:20])
    data = (p.folder / "after").read_bytes()
    assert len(data) == 20 * (964 * HEIGHT + 64 * 48 * 3)


@pytest.mark.parametrize(
    "scene", ["seeks", "joined", "states", "memory", "hanging", "late", "pads", "messages", "properties"]
)
def test_programs(server: Server, environment: dict[str, str], scene: str) -> None:
    """Programs of the system's Python do what gst-launch-1.0 cannot."""
    if scene == "hanging":
        server.process.send_signal(signal.SIGSTOP)
    try:
        command = ["/usr/bin/python3", HERE / "programs.py", scene, server.tcp]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    finally:
        server.process.send_signal(signal.SIGCONT)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stdout + done.stderr

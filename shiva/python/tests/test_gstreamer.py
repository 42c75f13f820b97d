"""How the GStreamer element handles answers. ``make gst-test`` tests the element itself."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Server
from shiva_client import Answer, Client, Message, Result, Superseded, Unreachable
from shiva_client.gstreamer.drawing import MOST, find_drawing
from shiva_client.gstreamer.record import NEVER, line
from shiva_client.gstreamer.session import Picture, Session


def picture(seq: int = 3, pts: int = 1000) -> Picture:
    return Picture(seq, np.zeros((4, 6, 3), np.uint8), None, pts, 40)


def result(message: Message, of: Picture) -> Result:
    future: Future[Answer] = Future()
    future.set_result(Answer(message))
    return Result(of.seq, of, of.taken, future)


def answer(outputs: dict[str, Any], **metadata: Any) -> Message:
    return Message("m", {"__tensors__": list(outputs), **metadata}, [np.asarray(value) for value in outputs.values()])


def test_a_line_is_json_whatever_the_outputs_are() -> None:
    outputs = {
        "half": np.float16([0.5, np.nan]),
        "wide": np.float64([[np.inf, 1]]),
        "pairs": np.complex64([1 + 2j]),
        "yes": np.array([True]),
        "big": np.uint64([2**64 - 1]),
        "none": np.empty((0, 4), np.int32),
    }
    texts = {"__texts__": {"label": ["née", {"b64": "/w=="}]}}
    text = line(result(answer(outputs, model_name="m", model_version="2", **texts), picture()))
    assert text.endswith("}\n")
    assert text.count("\n") == 1
    record = json.loads(text, parse_constant=pytest.fail)
    assert [record[key] for key in ("seq", "pts", "width", "height", "model", "version")] == [3, 1000, 6, 4, "m", "2"]
    assert record["outputs"] == {
        "half": [0.5, None],
        "wide": [[None, 1.0]],
        "pairs": [[1.0, 2.0]],
        "yes": [True],
        "big": [2**64 - 1],
        "none": [],
        "label": ["née", {"b64": "/w=="}],
    }
    assert json.loads(line(result(answer({}), picture(pts=NEVER))))["pts"] is None


def test_what_is_drawn() -> None:
    boxes = np.int32([[10, 20, 30, 40], [0, 0, 5, 5]])
    names = np.array(["cat", b"\xff"], object)
    outputs = {
        "boxes": boxes,
        "labels": names,
        "scores": np.float32([0.5, 0.25]),
        "count": np.int64([2]),
        "more": np.zeros(5),
    }
    what = find_drawing(outputs, 100, 100, "xywh")
    assert what.shapes[0].corners.tolist() == [[10, 20], [40, 20], [40, 60], [10, 60]]
    assert [shape.text for shape in what.shapes] == ["cat 0.5", "\ufffd 0.25"]
    assert what.lines == ["count: 2"]
    corners = find_drawing(outputs, 100, 100, "xyxy").shapes[0].corners.tolist()
    assert corners == [[10, 20], [30, 20], [30, 40], [10, 40]]
    triangle = np.float32([[[0, 0], [1, 0], [1, 1]]])
    assert find_drawing({"boxes": triangle}, 9, 9, "xywh").shapes[0].corners.tolist() == triangle[0].tolist()
    rows = np.float32([[1, 0.9, 0.1, 0.2, 0.3, 0.4], [0] * 6])
    (shape,) = find_drawing({"detections": rows}, 100, 10, "xywh").shapes
    assert shape.text == "1 0.90"
    assert np.allclose(shape.corners, [[20, 1], [40, 1], [40, 3], [20, 3]])
    assert len(find_drawing({"boxes": np.zeros((MOST + 9, 4))}, 9, 9, "xywh").shapes) == MOST


@pytest.mark.parametrize("boxes", [np.empty((0, 4), np.int32), np.empty((0,)), np.float32(3), np.array(["a"], object)])
def test_boxes_that_are_none(boxes: Any) -> None:
    assert find_drawing({"boxes": np.asarray(boxes)}, 9, 9, "xywh").shapes == []


class Told:
    """Records what a session tells of its pictures."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[int, Any]] = []
        self.over = threading.Event()

    def session(self, address: str, keep: Any) -> Session:
        client = Client(address)
        return Session(client, client.stream("m", "cam", keep=keep), keep, self.told, lambda _: self.over.set())

    def told(self, session: Session, one: Picture, outcome: Any) -> None:
        self.outcomes.append((one.seq, outcome))


def test_a_session_tells_of_all_that_is_kept_and_then_that_it_is_over(server: Server) -> None:
    held = threading.Event()

    def handler(message: Message) -> Message:
        assert held.wait(60)
        return Message("m", {"seq": message.metadata["seq"]}, message.tensors)

    server.handler = handler
    for keep, answered in (("all", list(range(9))), ("latest", [8])):
        held.clear()
        told = Told()
        session, pictures = told.session(server.address, keep), [picture(seq) for seq in range(9)]
        for one in pictures:
            session.show(one)
        session.finish()
        held.set()
        assert told.over.wait(60)
        assert [seq for seq, outcome in told.outcomes if isinstance(outcome, Result)][-len(answered) :] == answered
        assert pictures[-1].pixels is None, "pixels are not held while an answer is waited for"
        session.close()


def test_a_session_without_a_server(tmp_path: Path) -> None:
    told = Told()
    session = told.session(f"unix:{tmp_path}/nobody", "all")
    session.show(picture(0))
    session.finish()
    assert told.over.wait(60)
    assert [(seq, type(outcome)) for seq, outcome in told.outcomes] == [(0, Unreachable)]


class Slow:
    """A stream that takes a picture and does nothing more until it is closed."""

    def __init__(self) -> None:
        self.pushed, self.closed = threading.Event(), threading.Event()

    def push(self, *_: Any, **__: Any) -> None:
        self.pushed.set()
        assert self.closed.wait(60)

    def __iter__(self) -> Iterator[Result]:
        assert self.closed.wait(60)
        return iter(())

    def finish(self) -> None:
        pass

    def close(self) -> None:
        self.closed.set()


def test_what_waits_is_forgotten() -> None:
    stream: Any = Slow()
    session = Session(stream, stream, "all", Told().told, lambda _: None)
    pictures = [picture(seq) for seq in range(3)]
    session.show(pictures[0])
    assert stream.pushed.wait(60)
    for one in pictures[1:]:
        session.show(one)
    assert session.forget() == pictures[1:]
    assert session.idle
    session.close()


def test_nobody_hears_of_a_session_that_was_closed(server: Server) -> None:
    held, asked = threading.Event(), threading.Event()

    def handler(message: Message) -> Message:
        asked.set()
        assert held.wait(60)
        return Message("!error", {"type": Superseded.__name__})

    server.handler = handler
    told = Told()
    session = told.session(server.address, "all")
    session.show(picture(0))
    assert asked.wait(60)
    session.show(picture(1))
    session.close()
    held.set()
    assert not told.outcomes
    assert not told.over.is_set()

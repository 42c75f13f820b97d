"""Programs that use the element, run by the Python of the system: programs.py SCENE LOCATION."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import types
import weakref
from collections.abc import Callable
from typing import Any

import gi
import numpy as np

gi.require_version("Gst", "1.0")
from gi.repository import Gst

PATIENCE = 100.0
SOURCE = "videotestsrc name=source pattern=ball ! video/x-raw,format=RGB,width=320,height=240,framerate=30/1"


def until(what: str, holds: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while not (got := holds()):
        assert time.monotonic() < end, f"waited {PATIENCE:.0f} s for {what}"
        time.sleep(0.01)
    return got


class Player:
    """A pipeline, and the output of its results pad."""

    def __init__(self, options: str, video: str = "fakesink name=video sync=true", source: str = SOURCE) -> None:
        text = f"{source} ! shivainfer name=i location={LOCATION} {options} ! {video}"
        self.pipeline = Gst.parse_launch(f"{text} i.results ! appsink name=results emit-signals=true sync=false")
        self.element = self.pipeline.get_by_name("i")
        self.seen: list[tuple[str, Any]] = []  # buffers and events, in their order
        self.pictures = 0
        shown = Gst.PadProbeType.EVENT_FLUSH | Gst.PadProbeType.BUFFER
        self.element.get_static_pad("sink").add_probe(shown, self._counted)
        self.sink = self.pipeline.get_by_name("results")
        kinds = Gst.PadProbeType.EVENT_DOWNSTREAM | Gst.PadProbeType.EVENT_FLUSH | Gst.PadProbeType.BUFFER
        self.sink.get_static_pad("sink").add_probe(kinds, self._seen)
        self.sink.connect("new-sample", self._taken)

    def _seen(self, pad: Any, info: Any) -> Any:
        if info.type & Gst.PadProbeType.BUFFER:
            buffer = info.get_buffer()
            with buffer.map(Gst.MapFlags.READ) as text:
                answer = json.loads(bytes(text.data))
            assert answer["pts"] == buffer.pts
            self.seen.append(("answer", answer))
        else:
            self.seen.append((Gst.EventType.get_name(info.get_event().type), info.get_event()))
        return Gst.PadProbeReturn.OK

    def _taken(self, sink: Any) -> Any:
        sink.emit("pull-sample")
        return Gst.FlowReturn.OK

    def answers(self, since: int = 0) -> list[Any]:
        return [what for kind, what in self.seen[since:] if kind == "answer"]

    def wait(self, count: int = 1, since: int = 0) -> list[Any]:
        """The answers after those seen before, once there are enough."""
        until("answers", lambda: len(self.answers(since)) >= count)
        return self.answers(since)

    def wait_shown(self, count: int) -> None:
        until("pictures", lambda: self.pictures >= count)

    def state(self, state: Any) -> None:
        result = self.pipeline.set_state(state)
        if result == Gst.StateChangeReturn.ASYNC:
            result = self.pipeline.get_state(int(PATIENCE) * Gst.SECOND)[0]
        assert result == Gst.StateChangeReturn.SUCCESS, (state, result, self.fault())

    def _counted(self, pad: Any, info: Any) -> Any:
        """Count the pictures that the element gets, from the last flush on."""
        if info.type & Gst.PadProbeType.BUFFER:
            self.pictures += 1
        elif info.get_event().type == Gst.EventType.FLUSH_STOP:
            self.pictures = 0
        return Gst.PadProbeReturn.OK

    def message(self, kinds: Any) -> Any:
        return self.pipeline.get_bus().timed_pop_filtered(int(PATIENCE) * Gst.SECOND, kinds)

    def fault(self) -> str:
        message = self.pipeline.get_bus().pop_filtered(Gst.MessageType.ERROR)
        return message.parse_error()[0].message if message else ""


def seeks() -> None:
    """Pictures from before a flush are not answered after it, and each seek starts again."""
    for keep in ("latest", "all"):
        p = Player(f"model=slow keep={keep}")
        p.state(Gst.State.PLAYING)
        p.wait(2)
        for second in (100, 50, 200):
            assert p.pipeline.seek_simple(Gst.Format.TIME, Gst.SeekFlags.FLUSH, second * Gst.SECOND)
            flushed = max(i for i, (kind, _) in enumerate(p.seen) if kind == "flush-stop")
            times = [one["pts"] / Gst.SECOND for one in p.wait(2, flushed)]
            assert all(second <= t < second + 50 for t in times), times
            assert times == sorted(times), times
            assert [kind for kind, _ in p.seen[flushed : flushed + 3]] == ["flush-stop", "segment", "gap"]
            assert p.seen[flushed + 1][1].parse_segment().start == second * Gst.SECOND
        flushes = [kind for kind, _ in p.seen].count("flush-stop")
        assert flushes == 3, f"a seek through two sinks flushes once: {flushes} times for 3"
        # To the end: the outstanding answers arrive, and then the end.
        begin, end = 10 * Gst.SECOND, 10 * Gst.SECOND + Gst.SECOND // 3
        p.pipeline.seek(1.0, Gst.Format.TIME, Gst.SeekFlags.FLUSH, Gst.SeekType.SET, begin, Gst.SeekType.SET, end)
        assert p.message(Gst.MessageType.EOS | Gst.MessageType.ERROR).type == Gst.MessageType.EOS
        assert [kind for kind, _ in p.seen if kind != "gap"][-2:] == ["answer", "eos"]
        assert p.answers()[-1]["pts"] == 10 * Gst.SECOND + 3 * Gst.SECOND // 10
        # And back, after the end.
        ended = len(p.seen)
        assert p.pipeline.seek_simple(Gst.Format.TIME, Gst.SeekFlags.FLUSH, 70 * Gst.SECOND)
        assert p.wait(1, ended)[0]["pts"] >= 70 * Gst.SECOND
        p.state(Gst.State.NULL)


def joined() -> None:
    """When one video follows another, answers to the first come before any output of the second."""
    part = "videotestsrc num-buffers=10 ! video/x-raw,format=RGB,width=320,height=240,framerate=30/1 ! c."
    p = Player("model=slow", source=f"{part} {part} concat name=c")
    p.state(Gst.State.PLAYING)
    assert p.message(Gst.MessageType.EOS | Gst.MessageType.ERROR).type == Gst.MessageType.EOS
    p.state(Gst.State.NULL)
    segments = [event.parse_segment() for kind, event in p.seen if kind == "segment"]
    assert [segment.base for segment in segments] == [0, Gst.SECOND // 3], [segment.base for segment in segments]
    assert [one["seq"] for one in p.answers()][-1] == 19


def states() -> None:
    """Back and forth between all states."""
    p = Player("model=ball")
    for _ in range(3):
        for state in (Gst.State.READY, Gst.State.PAUSED, Gst.State.PLAYING):
            p.state(state)
        since = len(p.seen)
        p.wait(1, since)
        began = max(i for i, (kind, _) in enumerate(p.seen) if kind == "stream-start")
        assert all(one["seq"] == round(one["pts"] * 30 / Gst.SECOND) for one in p.answers(began))
        p.state(Gst.State.PAUSED)
        p.state(Gst.State.PLAYING)
        since = len(p.seen)
        p.wait(1, since)
        p.state(Gst.State.READY)
    p.state(Gst.State.NULL)
    starts = [kind for kind, _ in p.seen].count("stream-start")
    assert starts == 3, starts


def memory() -> None:
    """Nothing is left of an element whose pipeline has ended."""
    pipeline = Gst.parse_launch(
        f"{SOURCE} ! shivainfer name=i location={LOCATION} model=ball ! fakesink i.results ! fakesink"
    )
    pipeline.get_by_name("source").set_property("num-buffers", 20)
    element = weakref.ref(pipeline.get_by_name("i"))
    pipeline.set_state(Gst.State.PLAYING)
    assert pipeline.get_bus().timed_pop_filtered(int(PATIENCE) * Gst.SECOND, Gst.MessageType.EOS)
    pipeline.set_state(Gst.State.NULL)
    del pipeline

    def gone() -> bool:
        gc.collect()
        return element() is None

    until("the end of the element", gone)


def hanging() -> None:
    """A server that never answers does not block a pause, a seek or the end of the pipeline."""
    for keep in ("latest", "all"):
        p = Player(f"model=ball keep={keep} timeout=3600000", "fakesink name=video sync=true async=false")
        assert p.pipeline.set_state(Gst.State.PLAYING) != Gst.StateChangeReturn.FAILURE
        p.wait_shown(9)  # with all kept it holds eight, and waits
        p.state(Gst.State.PAUSED)
        p.state(Gst.State.PLAYING)
        p.pipeline.seek_simple(Gst.Format.TIME, Gst.SeekFlags.FLUSH, Gst.SECOND)
        p.wait_shown(9)
        assert p.pipeline.set_state(Gst.State.NULL) == Gst.StateChangeReturn.SUCCESS


def late() -> None:
    """An answer to a picture from before a flush that arrives just after it is dropped."""
    sys.path.append(f"{os.environ['GST_PLUGIN_PATH']}/../..")
    from shiva_client.gstreamer.results import Results
    from shiva_client.gstreamer.session import Picture

    element = Gst.ElementFactory.make("identity")
    pad, got = Gst.Pad.new("results", Gst.PadDirection.SRC), []
    element.add_pad(pad)
    pad.add_probe(
        Gst.PadProbeType.BUFFER, lambda pad, info: got.append(info.get_buffer().pts) or Gst.PadProbeReturn.DROP
    )
    pad.set_active(True)
    segment = Gst.Segment()
    segment.init(Gst.Format.TIME)
    start, segment = Gst.Event.new_stream_start("video"), Gst.Event.new_segment(segment)
    results = Results(element, pad)
    results.begin(start)
    for pts, closed in ((1, True), (2, False)):
        picture = Picture(0, np.zeros((1, 1, 3), np.uint8), segment, pts, 1)
        results.answer(types.SimpleNamespace(closed=closed), picture, "text", wait=False)
        results.silence(types.SimpleNamespace(closed=closed), picture)
    until("the answer", lambda: got)
    results.stop()
    assert got == [2]


def pads() -> None:
    """The pad of results comes and goes while the video plays."""
    pipeline = Gst.parse_launch(f"{SOURCE} ! shivainfer name=i location={LOCATION} model=ball ! fakesink sync=true")
    element = pipeline.get_by_name("i")
    pipeline.set_state(Gst.State.PLAYING)
    assert pipeline.get_state(int(PATIENCE) * Gst.SECOND)[0] == Gst.StateChangeReturn.SUCCESS
    for _ in range(3):
        sink = Gst.ElementFactory.make("appsink", None)
        sink.set_property("async", False)
        pipeline.add(sink)
        sink.sync_state_with_parent()
        pad = element.request_pad_simple("results")
        assert pad and element.request_pad_simple("results") is None, "one is all there is"
        assert pad.link(sink.get_static_pad("sink")) == Gst.PadLinkReturn.OK
        sample = sink.emit("try-pull-sample", int(PATIENCE) * Gst.SECOND)
        assert sample.get_caps().to_string() == "text/x-raw, format=(string)utf8"
        assert sample.get_segment().format == Gst.Format.TIME
        pad.unlink(sink.get_static_pad("sink"))
        element.release_request_pad(pad)
        sink.set_state(Gst.State.NULL)
        pipeline.remove(sink)
    pipeline.set_state(Gst.State.NULL)


def messages() -> None:
    """Programs learn of failures, and of their end, from messages of the element."""
    p = Player("model=bell")
    p.state(Gst.State.PLAYING)
    failed = p.message(Gst.MessageType.ELEMENT).get_structure()
    until("gaps", lambda: [kind for kind, _ in p.seen].count("gap") >= 5)
    assert not p.answers()
    ends = [sum(event.parse_gap()) for kind, event in p.seen if kind == "gap"]
    assert ends == sorted(ends) and ends[-1] % (Gst.SECOND // 30) < 5, ends
    assert failed.get_name() == "shivainfer-failed"
    assert (failed.get_value("type"), failed.get_value("model")) == ("NotFound", "bell")
    assert "bell" in failed.get_value("message")
    p.state(Gst.State.READY)
    p.element.set_property("model", "ball")
    p.state(Gst.State.PLAYING)
    p.wait()
    p.state(Gst.State.NULL)


def properties() -> None:
    """The overlay can be turned off and on while the video plays; the token cannot be read."""
    p = Player("model=ball", "appsink name=video sync=true max-buffers=1 drop=true")
    video = p.pipeline.get_by_name("video")
    p.state(Gst.State.PLAYING)

    def drawn() -> bool:
        sample = video.emit("try-pull-sample", Gst.SECOND)
        with sample.get_buffer().map(Gst.MapFlags.READ) as pixels:
            data = bytes(pixels.data)
        return any(data[i] + 60 < data[i + 1] for i in range(0, len(data), 3))

    until("an overlay", drawn)
    p.element.set_property("overlay", False)
    until("none", lambda: not drawn())
    p.element.set_property("overlay", True)
    until("an overlay", drawn)
    p.element.set_property("token", "secret")
    try:
        p.element.get_property("token")
        raise AssertionError("the token could be read")
    except TypeError:
        pass
    p.state(Gst.State.NULL)


if __name__ == "__main__":
    Gst.init(None)
    LOCATION = sys.argv[2]
    globals()[sys.argv[1]]()

"""The element shivainfer, which shows the pictures of a video to a model behind shivad.

GStreamer loads this file; it is not a module of the package.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gi
import numpy as np

gi.require_version("Gst", "1.0")
gi.require_version("GstBase", "1.0")
gi.require_version("GstVideo", "1.0")
from gi.repository import GObject, Gst, GstBase, GstVideo  # noqa: E402

# The package around this file, so that only GST_PLUGIN_PATH has to be set. The entry comes last, so
# it changes nothing if the package is installed.
sys.path.append(str(Path(__file__).resolve().parents[3]))

from shiva_client import Client, NotAnswered, Result, Stream  # noqa: E402
from shiva_client.gstreamer import record  # noqa: E402
from shiva_client.gstreamer.drawing import FORMS, find_drawing  # noqa: E402
from shiva_client.gstreamer.overlay import Overlay  # noqa: E402
from shiva_client.gstreamer.results import CAPS, Results  # noqa: E402
from shiva_client.gstreamer.session import Picture, Session  # noqa: E402

HELD = 8
"""How many pictures wait here for their answers at once, if all are kept."""

VIDEO = "video/x-raw,format=RGB,width=[1,32767],height=[1,32767]"

EXPECTED = {
    "Unreachable": "expected a server at {location}, as the property location says",
    "ConnectionLost": "the next picture connects again",
    "TimedOut": "expected an answer within {timeout} ms, as the property timeout says",
    "Unauthenticated": "expected a token that the server knows, in the property token or in $SHIVA_TOKEN",
    "PermissionDenied": "expected a token whose identity may use the model, in the property token",
    "NotFound": "expected the name of a model of the server in the property model (shivactl models lists them)",
    "InvalidInput": "the model got uint8 [{height}, {width}, 3]; for pictures of another size, put "
    "videoscale ! video/x-raw,width=...,height=... before this element",
}
"""Hints on what was expected, by kind of error."""

BROKEN = (Gst.FlowReturn.NOT_NEGOTIATED, Gst.FlowReturn.ERROR, Gst.FlowReturn.NOT_SUPPORTED)
"""Flow returns of the results pad that stop the video, too."""


def text_property(default: str, blurb: str, flags: Any = GObject.ParamFlags.READWRITE) -> Any:
    return GObject.Property(type=str, default=default, blurb=blurb, flags=flags)


class ShivaInfer(GstBase.BaseTransform):
    """Shows pictures to a model, and draws its answers, which the results pad outputs as JSON."""

    __gtype_name__ = "ShivaInfer"

    __gstmetadata__ = (
        "Shiva inference",
        "Filter/Analyzer/Video",
        "Sends the pictures of a video to a model behind shivad, and draws its answers",
        "https://github.com/shivad/shivad",
    )
    __gsttemplates__ = (
        Gst.PadTemplate.new("sink", Gst.PadDirection.SINK, Gst.PadPresence.ALWAYS, Gst.Caps.from_string(VIDEO)),
        Gst.PadTemplate.new("src", Gst.PadDirection.SRC, Gst.PadPresence.ALWAYS, Gst.Caps.from_string(VIDEO)),
        Gst.PadTemplate.new("results", Gst.PadDirection.SRC, Gst.PadPresence.REQUEST, Gst.Caps.from_string(CAPS)),
    )

    location = text_property(
        "127.0.0.1:6174", "The server: HOST:PORT, tls://HOST:PORT or unix:PATH; several with commas between them"
    )
    model = text_property("", "The model, MODEL/VERSION or application that gets the pictures")
    stream = text_property("", "The name of the stream; empty: a unique one")
    keep = text_property("latest", "How many pictures may wait for the model: latest (one), a number, or all")
    token = text_property(
        "",
        "The token that identifies the client; empty: $SHIVA_TOKEN, or the file $SHIVA_TOKEN_FILE",
        GObject.ParamFlags.WRITABLE,
    )
    timeout = GObject.Property(
        type=int, default=10_000, minimum=1, maximum=3_600_000, blurb="The deadline of each picture, in milliseconds"
    )
    overlay = GObject.Property(type=bool, default=True, blurb="Draw the answers on the video")
    boxes = text_property("xywh", "What the four numbers of boxes are: xywh, or xyxy (two corners)")
    stop_on_error = GObject.Property(
        type=bool, default=False, blurb="End the pipeline with an error if a picture is not answered"
    )

    # Class attributes: an element is asked to release its pad after its own attributes are gone.
    _pad: Any = None
    _results: Results | None = None  # while running with a results pad

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        self._session: Session | None = None
        self._last: Session | None = None  # the one that has finished
        self._ending = False  # the video has ended, and the session still has answers to come
        self._seq = 0
        self._keep: Any = "latest"  # the property's value at the start
        self._held: deque[tuple[Any, Picture | None]] = deque()  # buffers that wait for an answer
        self._shown: Picture | None = None  # of the current buffer
        self._drawn: Overlay | None = None  # on buffers that do not wait
        self._last_fault_kind = ""  # the kind of error of the last picture
        self._unanswered = False  # the server did not answer it
        self._failed = False
        self._running = False
        self._segment: Any = None  # the event of the video's current segment
        self._stride = self._width = self._height = 0
        self._last_seek = -1  # the number of the last seek

    # States, and the pad of results.

    def do_change_state(self, transition: Any) -> Any:
        if transition == Gst.StateChange.PLAYING_TO_PAUSED and self._results:
            self._results.pause()
        elif transition == Gst.StateChange.PAUSED_TO_READY:
            self._running = False  # ends the wait for an answer
            self._leave()
        return GstBase.BaseTransform.do_change_state(self, transition)

    def do_start(self) -> bool:
        try:
            self._keep = int(self.keep) if self.keep.isdecimal() else self.keep
            if not self.model:
                raise ValueError("the property model is empty, expected the name of a model of the server")
            if self.boxes not in FORMS:
                raise ValueError(f"the property boxes is {self.boxes!r}, expected {' or '.join(FORMS)}")
            for opened in self._open():
                opened.close()
        except (ValueError, OSError) as error:
            self._post(Gst.MessageType.ERROR, Gst.ResourceError.SETTINGS, str(error))
            return False
        self._seq, self._last_fault_kind, self._unanswered, self._failed, self._running = 0, "", False, False, True
        self._segment, self._results = None, Results(self, self._pad) if self._pad else None
        self.set_passthrough(not self.overlay)
        return True

    def do_stop(self) -> bool:
        self._leave()
        if self._results:
            self._results.stop()
        self._results = None
        return True

    def do_request_new_pad(self, template: Any, name: str | None, caps: Any) -> Any:
        if self._pad:
            return None  # there is one already
        self._pad = Gst.Pad.new_from_template(template, "results")
        self._pad.set_event_function_full(results_event)
        if self._running:
            self._pad.set_active(True)
            results = Results(self, self._pad)
            if start := self.sinkpad.get_sticky_event(Gst.EventType.STREAM_START, 0):
                results.begin(start)
            if self._segment:
                results.start(self._segment)
            self._results = results
        self.add_pad(self._pad)
        return self._pad

    def do_release_pad(self, pad: Any) -> None:
        results, self._results, self._pad = self._results, None, None
        pad.set_active(False)
        if results:
            results.stop()
        self.remove_pad(pad)

    def do_src_event(self, event: Any) -> bool:
        return self.repeats_seek(event) or bool(GstBase.BaseTransform.do_src_event(self, event))

    def repeats_seek(self, event: Any) -> bool:
        """Whether this seek came from the other pad before: a pipeline seeks at every sink."""
        if event.type != Gst.EventType.SEEK:
            return False
        with self._changed:
            before, self._last_seek = self._last_seek, event.get_seqnum()
            return bool(before == self._last_seek)

    # The video.

    def do_set_caps(self, incaps: Any, outcaps: Any) -> bool:
        info = GstVideo.VideoInfo.new_from_caps(incaps)
        self._width, self._height, self._stride = info.width, info.height, info.stride[0]
        return True

    def do_sink_event(self, event: Any) -> bool:
        results = self._results
        if event.type == Gst.EventType.FLUSH_START:
            self._leave()
            if results:
                results.flush(event)
        elif event.type == Gst.EventType.FLUSH_STOP:
            self._leave()  # again: a picture may have been on its way here when the flush began
            if results:
                results.flushed(event)
        elif event.type & Gst.EventTypeFlags.SERIALIZED:
            while (buffer := self._release()) is not None:
                self.srcpad.push(buffer)
        if event.type == Gst.EventType.STREAM_START:
            with self._changed:  # the answers of a stream come before the next stream
                self._changed.wait_for(lambda: not self._ending)
            if results:
                results.begin(event)
        elif event.type == Gst.EventType.SEGMENT:
            self._segment = event
            if results:
                results.start(event)
        elif event.type == Gst.EventType.EOS:
            self._finish()
        return bool(GstBase.BaseTransform.do_sink_event(self, event))

    def do_transform_ip(self, buffer: Any) -> Any:
        if self._failed:
            return Gst.FlowReturn.ERROR
        if self._results and self._results.flow in BROKEN:
            return self._results.flow
        draws = not self.is_passthrough()
        with self._pixels(buffer, draws) as pixels:
            self._shown = self._show(pixels, buffer, draws)
            if draws and self._keep != "all":
                draw(self._drawn, pixels)
        if draws != self.overlay:  # from the next picture on
            self.set_passthrough(draws)
        return Gst.FlowReturn.OK

    def do_generate_output(self) -> tuple[Any, Any]:
        """If all pictures are kept, hold each until it is answered, up to HELD at once."""
        self._shown = None
        flow, buffer = GstBase.BaseTransform.do_generate_output(self)
        if self._keep != "all" or flow != Gst.FlowReturn.OK:
            return flow, buffer
        with self._changed:
            if buffer is not None:
                self._held.append((buffer, self._shown))
            if not self._held or (len(self._held) <= HELD and not self._done(self._held[0][1])):
                return flow, None
        return flow, self._release()

    def _release(self) -> Any:
        """Wait for the answer to the first held buffer, and return it. None: none is held."""
        with self._changed:
            self._changed.wait_for(lambda: not self._held or self._done(self._held[0][1]))
            if not self._held:
                return None
            buffer, picture = self._held.popleft()
        if picture and picture.draws:
            with self._pixels(buffer, True) as pixels:
                draw(picture.overlay, pixels)
        return buffer

    def _done(self, picture: Picture | None) -> bool:
        """Whether a picture waits no longer. While the server does not answer, none waits."""
        return not picture or picture.settled or picture.session.closed or self._unanswered or self._failed

    @contextmanager
    def _pixels(self, buffer: Any, write: bool) -> Iterator[Any]:
        """The pixels of a buffer, [height, width, 3]."""
        meta = GstVideo.buffer_get_video_meta(buffer)
        offset, stride = (meta.offset[0], meta.stride[0]) if meta else (0, self._stride)
        with buffer.map(Gst.MapFlags.READ | Gst.MapFlags.WRITE if write else Gst.MapFlags.READ) as info:
            yield np.ndarray((self._height, self._width, 3), np.uint8, info.data, offset, (stride, 3, 1))

    # The model.

    def _open(self) -> tuple[Client, Stream]:
        name = self.stream or f"{socket.gethostname()}/{os.getpid()}/{self.get_name()}"
        client = Client(self.location, token=self.token or None)
        return client, client.stream(self.model, name, keep=self._keep, timeout=self.timeout / 1000)

    def _show(self, pixels: Any, buffer: Any, draws: bool) -> Picture | None:
        """Show a picture to the model, unless there are no answers and another picture is
        waiting."""
        failed = None
        with self._changed:
            if not self._running:
                return None
            if not self._session:
                try:
                    self._session = Session(*self._open(), self._keep, self._on_outcome, self._on_end)
                except (ValueError, OSError) as error:  # such as a missing token or key file
                    failed = error
            session = self._session
            self._seq += 1
        if not session:
            self._note(failed)
            return None
        if self._keep == "all" and self._unanswered and not session.idle:
            return None
        picture = Picture(self._seq - 1, pixels.copy(), self._segment, buffer.pts, buffer.duration)
        picture.session, picture.draws = session, draws
        session.show(picture)
        return picture

    def _on_outcome(self, session: Session, picture: Picture, outcome: Result | Exception) -> None:
        """Called in a thread of the session."""
        results, overlay, failed, settled = self._results, None, None, [picture]
        if isinstance(outcome, Exception):
            failed = outcome
            if isinstance(failed, NotAnswered):
                settled += session.forget()
            if results:
                results.silence(session, picture)
        else:
            if self.overlay:
                drawn = find_drawing(outcome.answer, picture.width, picture.height, self.boxes)
                overlay = Overlay(drawn, picture.width, picture.height)
            if results:
                results.answer(session, picture, record.line(outcome), wait=self._keep == "all")
        with self._changed:
            if session.closed:
                return
            picture.overlay = self._drawn = overlay
            for one in settled:
                one.settled = True
            self._changed.notify_all()
        self._note(failed, picture)

    def _on_end(self, session: Session) -> None:
        """Called in a thread of the session, after the last picture was answered."""
        if self._results:
            self._results.end(session)
        with self._changed:
            self._ending = self._ending and session.closed
            self._changed.notify_all()

    def _finish(self) -> None:
        """Show no more pictures. The results end after the last answer."""
        with self._changed:
            session, self._session, self._last = self._session, None, self._session
            self._ending = session is not None
        if session:
            session.finish()
        elif self._results:
            self._results.end()

    def _leave(self) -> None:
        """Drop the answers to all pictures shown."""
        with self._changed:
            sessions, self._session, self._last = (self._session, self._last), None, None
            self._held.clear()
            self._drawn, self._ending = None, False
        for session in sessions:
            if session:
                session.close()
        with self._changed:
            self._changed.notify_all()

    # What goes wrong.

    def _note(self, failed: Exception | None, picture: Picture | None = None) -> None:
        """Report when pictures start to fail, fail differently, or are answered again."""
        kind = type(failed).__name__ if failed else ""
        with self._changed:
            before, self._last_fault_kind = self._last_fault_kind, kind
        if kind != before:
            self._post_fault(failed, kind, picture)
        with self._changed:  # only after the report: the source's own error is less specific
            self._unanswered = isinstance(failed, NotAnswered)
            self._failed = self._failed or bool(failed and self.stop_on_error)
            self._changed.notify_all()

    def _post_fault(self, failed: Exception | None, kind: str, picture: Picture | None) -> None:
        """Post the fault, as one message for programs and one for users."""
        structure = Gst.Structure.new_empty("shivainfer-failed" if failed else "shivainfer-answered")
        structure.set_value("model", self.model)
        if failed:
            structure.set_value("type", kind)
            structure.set_value("message", str(failed))
        self.post_message(Gst.Message.new_element(self, structure))
        if failed:
            text = f"{self.model}: {failed}"
            if expected := EXPECTED.get(kind):
                height, width = (picture.height, picture.width) if picture else (0, 0)
                text += "; " + expected.format(location=self.location, timeout=self.timeout, height=height, width=width)
            severity = Gst.MessageType.ERROR if self.stop_on_error else Gst.MessageType.WARNING
            self._post(severity, Gst.ResourceError.FAILED, text)

    def _post(self, severity: Any, code: Any, text: str) -> None:
        self.message_full(severity, Gst.resource_error_quark(), int(code), text, None, "shivainfer.py", "shivainfer", 0)


def results_event(pad: Any, element: ShivaInfer, event: Any) -> bool:
    """Handle upstream events of the results pad: drop QoS, as late text must not drop pictures.

    Not a method, since the pad would then hold a reference to the element, which holds the pad.
    """
    if event.type in (Gst.EventType.QOS, Gst.EventType.RECONFIGURE):
        return True
    return element.repeats_seek(event) or bool(element.sinkpad.push_event(event))


def draw(overlay: Overlay | None, pixels: Any) -> None:
    """Draw an overlay, unless it is for pictures of another size."""
    if overlay and overlay.size == pixels.shape[:2]:
        overlay.draw(pixels)


__gstelementfactory__ = ("shivainfer", Gst.Rank.NONE, ShivaInfer)

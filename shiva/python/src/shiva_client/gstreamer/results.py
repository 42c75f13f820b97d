"""The pad that outputs answers as text, with a thread of its own."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import gi

from .session import Picture, Session

gi.require_version("Gst", "1.0")
from gi.repository import Gst  # noqa: E402

CAPS = "text/x-raw,format=utf8"
MOST = 64
"""The maximum number of answers that wait while the downstream element takes none."""


class Results:
    """The queue of the pad's events and buffers: a sparse stream alongside the video's.

    The video's thread only queues items here. If it pushed them itself, the two sinks of a pipeline
    would wait for each other during preroll.
    """

    def __init__(self, element: Any, pad: Any) -> None:
        self.flow = Gst.FlowReturn.OK  # of the last buffer pushed
        self._element, self._pad = element, pad
        self._changed = threading.Condition()
        self._waiting: deque[Any] = deque()
        self._buffers = 0  # of them, how many are buffers
        self._flushing = False
        self._stopped = False
        self._pushing = False
        self._thread: threading.Thread | None = None
        self._segment: Any = None  # the event of the last item's segment
        self._until = 0  # the end of the last buffer or gap, in that segment

    def begin(self, start: Any) -> None:
        """Begin a stream in the same group as the video's, whose stream-start event is given."""
        event = Gst.Event.new_stream_start(self._pad.create_stream_id(self._element, "results"))
        event.set_stream_flags(Gst.StreamFlags.SPARSE)
        grouped, group = start.parse_group_id()
        if grouped:
            event.set_group_id(group)
        self._put(event, Gst.Event.new_caps(Gst.Caps.from_string(CAPS)))

    def start(self, segment: Any) -> None:
        """Enter the first segment, given by its event; later ones begin with their first picture.

        It begins with a gap: a sink that has a gap does not make the pipeline wait for an answer
        before it plays.
        """
        with self._changed:
            if not self._segment:
                self._enter(segment)

    def _enter(self, segment: Any) -> None:
        with self._changed:
            if segment is self._segment or self._flushing:
                return
            self._segment = segment
            self._put(segment)
            values = segment.parse_segment()
            self._until = values.start if values.rate > 0 else values.stop
            self.pause()

    def answer(self, session: Session, picture: Picture, text: str, *, wait: bool) -> None:
        """Queue the answer to a picture.

        While MOST answers wait, either wait, or drop the oldest of them.
        """
        with self._changed:
            self._changed.wait_for(lambda: not wait or self._flushing or self._buffers < MOST)
            if self._flushing or session.closed:
                return
            if self._buffers >= MOST:
                self._waiting.remove(next(item for item in self._waiting if isinstance(item, Gst.Buffer)))
                self._buffers -= 1
            self._silent(picture, picture.pts)
            buffer = Gst.Buffer.new_wrapped(text.encode())
            buffer.pts, buffer.duration = picture.pts, picture.duration
            self._put(buffer)
            self._until = max(self._until, _end(picture))

    def silence(self, session: Session, picture: Picture) -> None:
        """Announce that a picture has no answer, so that sinks do not wait for one."""
        with self._changed:
            if not self._flushing and not session.closed:
                self._silent(picture, _end(picture))

    def _silent(self, picture: Picture, end: int) -> None:
        """Advance to the segment of a picture, and to the time ``end`` in it."""
        self._enter(picture.segment)
        forward = picture.segment.parse_segment().rate > 0
        if forward and end != Gst.CLOCK_TIME_NONE and self._until < end:
            self._put(Gst.Event.new_gap(self._until, end - self._until))
            self._until = end

    def pause(self) -> None:
        """Send an empty gap, for a sink that waits for an item before it pauses."""
        with self._changed:
            if self._segment and self._until != Gst.CLOCK_TIME_NONE:
                self._put(Gst.Event.new_gap(self._until, 0))

    def end(self, session: Session | None = None) -> None:
        """End the stream, after all waiting items."""
        with self._changed:
            if not session or not session.closed:
                self._put(Gst.Event.new_eos())

    def flush(self, event: Any) -> None:
        """Drop waiting items, and take none until ``flushed``. The event is the flush's start.

        Before that, close the sessions whose answers are not wanted afterwards.
        """
        with self._changed:
            self._flushing = True
            self._waiting.clear()
            self._buffers = 0
            self._changed.notify_all()
        self._pad.push_event(event)

    def flushed(self, event: Any) -> None:
        """Continue after a flush. The event is its end."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pushing)
            self._segment, self.flow = None, Gst.FlowReturn.OK
            self._pad.push_event(event)
            self._flushing = False

    def stop(self) -> None:
        """Take nothing more, and end the thread."""
        with self._changed:
            self._flushing = self._stopped = True
            self._changed.notify_all()
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join()

    def _put(self, *items: Any) -> None:
        with self._changed:
            if self._flushing:
                return
            self._waiting.extend(items)
            self._buffers += sum(isinstance(item, Gst.Buffer) for item in items)
            self._changed.notify_all()
            if not self._thread:
                self._thread = threading.Thread(target=self._run, name="shivainfer results", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._pushing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._stopped)
                if self._stopped:
                    return
                item, self._pushing = self._waiting.popleft(), True
                self._buffers -= isinstance(item, Gst.Buffer)
                self._changed.notify_all()
            if isinstance(item, Gst.Event):
                self._pad.push_event(item)
            else:
                self.flow = self._pad.push(item)
            del item  # so that it is not held while waiting for the next


def _end(picture: Picture) -> int:
    """The end of a picture's time; 0 for a picture without a time."""
    if picture.pts == Gst.CLOCK_TIME_NONE:
        return 0
    return picture.pts + (0 if picture.duration == Gst.CLOCK_TIME_NONE else picture.duration)

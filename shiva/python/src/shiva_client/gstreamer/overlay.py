"""Draws a model's answer on a picture."""

from __future__ import annotations

from typing import Any

import cairo
import numpy as np

from ..wire import Array
from .drawing import Drawing

LINE, BACK = (0.47, 1.0, 0.47, 1.0), (0.05, 0.06, 0.05, 0.75)


class Overlay:
    """The pixels that an answer covers: rendered once, and drawn on any number of pictures."""

    def __init__(self, what: Drawing, width: int, height: int) -> None:
        self.size = (height, width)
        surface = cairo.ImageSurface(cairo.FORMAT_ARGB32, width, height)
        self._unit = max(1.0, height / 240)
        if what.shapes or what.lines:
            self._paint(cairo.Context(surface), what)
        surface.flush()
        ink = np.frombuffer(surface.get_data(), np.uint32).reshape(height, surface.get_stride() // 4)[:, :width]
        self._at = np.nonzero(ink >> 24)
        covered = ink[self._at][:, None]
        # Premultiplied by alpha, and independent of the machine's byte order.
        self._ink = (covered >> np.array([16, 8, 0], np.uint32) & 255).astype(np.uint16)
        self._rest = (255 - (covered >> 24)).astype(np.uint16)

    def draw(self, pixels: Array) -> None:
        """Draw on a picture, [height, width, 3] of uint8, in place."""
        pixels[self._at] = self._ink + pixels[self._at] * self._rest // 255

    def _paint(self, context: Any, what: Drawing) -> None:
        context.select_font_face("sans")
        context.set_font_size(max(10.0, 10 * self._unit))
        context.set_line_join(cairo.LINE_JOIN_ROUND)
        context.set_line_width(2 * self._unit)
        height, width = self.size
        for shape in what.shapes:
            corners = np.nan_to_num(shape.corners).clip(-width - height, 2 * (width + height)).tolist()
            context.set_source_rgba(*LINE)
            for x, y in corners:
                context.line_to(x, y)
            context.close_path()
            context.stroke()
            if shape.text:
                left, top = min(x for x, _ in corners), min(y for _, y in corners)
                self._write(context, shape.text, max(0.0, left), max(0.0, top - 14 * self._unit))
        for i, line in enumerate(what.lines):
            self._write(context, line, 4 * self._unit, (4 + 15 * i) * self._unit)

    def _write(self, context: Any, text: str, x: float, y: float) -> None:
        """Write a line of text on a dark background with its upper left corner at x, y."""
        text = text.replace("\0", " ")[:200]
        ascent, descent, *_ = context.font_extents()
        advance = context.text_extents(text)[4]
        context.set_source_rgba(*BACK)
        context.rectangle(x, y, advance + 4 * self._unit, ascent + descent)
        context.fill()
        context.set_source_rgba(*LINE)
        context.move_to(x + 2 * self._unit, y + ascent)
        context.show_text(text)

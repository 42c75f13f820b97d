"""Draw messages as they are on the wire: the pictures of examples/client and examples/device.

python examples/frames.py device >examples/device/frame.svg
python examples/frames.py client 127.0.0.1:6174 >examples/client/wire.svg

The second asks the model of `make run`, and draws the bytes that were sent and received.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

GREY, GREEN, OCHRE = "#6b7a8f", "#4c9f70", "#c98a2b"
LEFT, GAP = 16, 4


class Drawing:
    """An SVG whose parts are added from top to bottom."""

    def __init__(self, width: int, height: int) -> None:
        size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        font = 'font-family="system-ui, sans-serif" font-size="13"'
        self._lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>']
        self._lines.append(f'<rect width="{width}" height="{height}" fill="#ffffff"/>')

    def text(self, x: float, y: int, words: str, ink: str = "#333", middle: bool = True) -> None:
        anchor = ' text-anchor="middle"' if middle else ""
        self._lines.append(f'<text x="{x:g}" y="{y}"{anchor} fill="{ink}">{words}</text>')

    def boxes(self, y: int, parts: list[tuple[str, int, str]]) -> list[tuple[int, int]]:
        """Draw a row of boxes, each with words, width and colour; return where each begins and ends."""
        x, places = LEFT, []
        for words, width, colour in parts:
            self._lines.append(f'<rect x="{x}" y="{y}" width="{width}" height="38" rx="4" fill="{colour}"/>')
            self.text(x + width / 2, y + 24, words, "#ffffff")
            places.append((x, x + width))
            x += width + GAP
        return places

    def span(self, x: tuple[int, int], y: int, words: str) -> None:
        """Draw a line from one place to another, with its meaning."""
        self._lines.append(f'<path d="M{x[0]} {y}h{x[1] - x[0]}" stroke="#333" stroke-width="2"/>')
        self.text((x[0] + x[1]) / 2, y + 18, words)

    def __str__(self) -> str:
        return "\n".join([*self._lines, "</svg>\n"])


def device() -> str:
    """The frame of a device that has memory for one line of a picture."""
    drawing = Drawing(638, 178)
    drawing.text(LEFT, 24, "on the wire, in this order", middle=False)
    lines = [("line 0", 44, GREEN), *[("·", 26, GREEN)] * 6, ("line 7", 44, GREEN)]
    parts = [("header", 70, GREY), ("tensor", 62, GREY), *lines, ("metadata", 130, OCHRE), ("route", 56, OCHRE)]
    places = drawing.boxes(34, parts)
    drawing.text(LEFT, 104, "in memory, when", middle=False)
    drawing.span((places[0][0], places[1][1]), 116, "sizes: known before")
    drawing.span((places[2][0], places[9][1]), 116, "one line at a time, as it is read")
    drawing.span((places[10][0], places[11][1]), 116, "what is known after")
    drawing.text(
        LEFT, 164, "a buffer of 64 bytes gathers what is small; a line of the camera has 8 bytes", "#666", False
    )
    return str(drawing)


def hexadecimal(data: bytes) -> str:
    return data.hex(" ") if len(data) <= 12 else f"{data[:2].hex(' ')} … {data[-2:].hex(' ')}"


def client(address: str) -> str:
    """A question of client.c, and its answer."""
    header = bytes([6, 66, 11, 1, 0, 0, 0, 0, 1, 6, 91, 182])
    tensor = bytes([2, 3, 0, 0, 0, 8, 0, 0, 0, 8])
    image = Path(__file__).with_name("digits").joinpath("heldout.u8").read_bytes()[:64]
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60) as server:
        server.sendall(header + tensor + image + b"digits")
        answer = b""
        while len(answer) < 68:
            more = server.recv(68 - len(answer))
            if not more:
                raise SystemExit(f"the server closed the connection after {len(answer)} of 68 bytes")
            answer += more
    drawing = Drawing(848, 214)
    drawing.text(LEFT, 24, "the question, 92 bytes", middle=False)
    asked = [(hexadecimal(header), 258, GREY), (hexadecimal(tensor), 220, GREY)]
    places = drawing.boxes(34, [*asked, (hexadecimal(image), 160, GREEN), ("d i g i t s", 120, OCHRE)])
    for place, words in zip(places, ["header", "uint8, 8 x 8", "64 pixels", "route"], strict=True):
        drawing.text(sum(place) / 2, 90, words)
    drawing.text(LEFT, 128, "the answer, 68 bytes", middle=False)
    got = [answer[:12], answer[12:18], answer[18:58], answer[58:60], answer[60:]]
    widths, words = [258, 130, 160, 56, 180], ["header", "float32, 10", "scores", "int64", f"label: {answer[-1]}"]
    shown = [hexadecimal(one) for one in got]
    shown[2] = "40 bytes"  # the last digits of the scores depend on the machine
    colours = [GREY, GREY, GREEN, GREY, GREEN]
    for place, what in zip(drawing.boxes(138, list(zip(shown, widths, colours, strict=True))), words, strict=True):
        drawing.text(sum(place) / 2, 194, what)
    return str(drawing)


if __name__ == "__main__":
    made = {"device": device, "client": client}
    sys.stdout.write(made[sys.argv[1]](*sys.argv[2:]))

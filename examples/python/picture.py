"""Ask the three models of this folder, and draw what they answer.

pip install ./shiva/python
python examples/python/picture.py 127.0.0.1:6174 >examples/python/answers.svg
"""

from __future__ import annotations

import sys
from html import escape
from typing import Any

import numpy as np
from shiva_client import Client

CELL = 10
SPECIES = {"setosa": "#0072b2", "versicolor": "#e69f00", "virginica": "#009e73"}
TITLES = ["Crème brûlée, please!", "R2 D2", "Ñandú & Co."]


def text(x: float, y: float, words: str, ink: str = "#333", **more: Any) -> str:
    options = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in more.items())
    return f'<text x="{x:g}" y="{y:g}" fill="{ink}"{options}>{escape(words)}</text>'


def cells(inks: list[list[str]], left: int, top: int) -> list[str]:
    """Squares of colours, with one path for each colour."""
    paths: dict[str, str] = {}
    for y, row in enumerate(inks):
        for x, ink in enumerate(row):
            paths[ink] = paths.get(ink, "") + f"M{left + CELL * x} {top + CELL * y}h{CELL}v{CELL}h-{CELL}z"
    return [f'<path fill="{ink}" d="{path}"/>' for ink, path in paths.items()]


def grays(picture: Any) -> list[list[str]]:
    return [[f"#{int(v):02x}{int(v):02x}{int(v):02x}" for v in row] for row in picture]


def blurred(client: Client, left: int) -> list[str]:
    """A ring, and the same after two calls of "blur"."""
    y, x = np.mgrid[0:14, 0:14] - 6.5
    ring = np.where(np.abs(np.hypot(x, y) - 4.5) < 1, 30, 240).astype(np.float32)
    soft = client.infer("blur", client.infer("blur", ring, timeout=30)["picture"], timeout=30)["picture"]
    drawn = [text(left, 24, "blur: a picture to a smoother one")]
    return drawn + cells(grays(ring), left, 38) + cells(grays(soft), left + 15 * CELL, 38)


def species(client: Client, left: int) -> list[str]:
    """The species of an iris by the size of its petals, with sepals of average size."""
    lengths, widths = np.linspace(1, 7, 24), np.linspace(2.5, 0.1, 14)
    measures = [[5.8, 3.0, length, width] for width in widths for length in lengths]
    named = client.infer("iris", np.array(measures), timeout=30)["species"].reshape(14, 24)
    drawn = [text(left, 24, "iris: measures of a flower to its species")]
    drawn += cells([[SPECIES[str(name)] for name in row] for row in named], left, 38)
    drawn += [
        text(left + x, y, name, "#fff")
        for name, x, y in (("setosa", 6, 174), ("versicolor", 80, 124), ("virginica", 176, 64))
    ]
    return [*drawn, text(left + 240, 194, "length of petals →", text_anchor="end"), text(left, 194, "↑ their width")]


def slugs(client: Client, left: int) -> list[str]:
    """Titles, and the answers of "slug" to them."""
    made = client.infer("slug", {"title": TITLES}, timeout=30)["slug"]
    drawn = [text(left, 24, "slug: titles to URLs")]
    for i, (title, slug) in enumerate(zip(TITLES, made, strict=True)):
        drawn += [
            text(left, 56 + 46 * i, title),
            text(left + 12, 76 + 46 * i, f"/{slug}", "#0072b2", font_family="monospace"),
        ]
    return drawn


def main() -> None:
    with Client(sys.argv[1]) as client:
        drawn = [*blurred(client, 16), *species(client, 336), *slugs(client, 608)]
    size = 'viewBox="0 0 800 210" width="800" height="210" font-family="system-ui, sans-serif" font-size="13"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} shape-rendering="crispEdges">'
    sys.stdout.write("\n".join([head, '<rect width="800" height="210" fill="#fff"/>', *drawn, "</svg>\n"]))


if __name__ == "__main__":
    main()

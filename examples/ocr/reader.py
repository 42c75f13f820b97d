"""Read the text in pictures: a client that sends the file, and nothing else.

    python reader.py PICTURE ...
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from shiva_client import Client

SCORE = 0.5
"""Lines with a lower score are left out, as in the package."""


@dataclass
class Line:
    corners: Any  # [4, 2], in pixels of the picture
    text: str
    score: float


def read(client: Client, file: bytes, timeout: float | None = None) -> list[Line]:
    """The lines in a JPEG or PNG file. timeout is in seconds; None: the server's default."""
    return lines(client.infer("ocr", {"image": np.frombuffer(file, np.uint8)}, timeout=timeout))


def lines(answer: Any) -> list[Line]:
    """The lines in an answer of the pipeline."""
    corners = answer["corners"].reshape(-1, 4, 2)[answer["read.of"]]
    all_ = zip(corners, answer["text"].tolist(), answer["score"].tolist(), strict=True)
    return [Line(box, text, score) for box, text, score in all_ if score >= SCORE]


def main() -> None:
    with Client("127.0.0.1:6174") as client:
        for name in sys.argv[1:]:
            for line in read(client, Path(name).read_bytes()):
                print(f"{name}: {line.text} ({line.score:.2f})")


if __name__ == "__main__":
    main()

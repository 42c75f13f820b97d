"""Read the text in pictures: a client that calls each of the three models once.

    python reader.py PICTURE ...
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
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
    """The lines in a JPEG or PNG file. timeout is in seconds per request; None: the server's default."""
    answer = client.infer("ocr_det", {"image": np.frombuffer(file, np.uint8)}, timeout=timeout)
    return lines(client, file, answer["boxes"], timeout)


def lines(client: Client, file: bytes, boxes: Any, timeout: float | None = None) -> list[Line]:
    """The text in the boxes that ocr_det has found in a file."""
    if len(boxes) == 0:
        return []
    picture = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR)
    crops = [straight(picture, box) for box in boxes]
    upside_down = client.infer("ocr_cls", packed(crops), timeout=timeout)["upside_down"]
    crops = [cv2.rotate(crop, cv2.ROTATE_180) if turn else crop for crop, turn in zip(crops, upside_down, strict=True)]
    found = client.infer("ocr_rec", packed(crops), timeout=timeout)
    all_ = zip(boxes, found["text"].tolist(), found["score"].tolist(), strict=True)
    return [Line(box, text, score) for box, text, score in all_ if score >= SCORE]


def packed(crops: list[Any]) -> dict[str, Any]:
    """Crops of different sizes as the inputs of ocr_cls and ocr_rec."""
    sizes = np.array([crop.shape[:2] for crop in crops], np.int32)
    return {"pixels": np.concatenate([crop.ravel() for crop in crops]), "sizes": sizes}


def straight(picture: Any, box: Any) -> Any:
    """A box of text, cut out and level; one that is upright is laid on its side."""
    a, b, c, d = box = np.asarray(box, np.float32)
    width = int(max(np.linalg.norm(a - b), np.linalg.norm(c - d)))
    height = int(max(np.linalg.norm(a - d), np.linalg.norm(b - c)))
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    move = cv2.getPerspectiveTransform(box, corners)
    crop = cv2.warpPerspective(
        picture, move, (width, height), borderMode=cv2.BORDER_REPLICATE, flags=cv2.INTER_CUBIC
    )
    return np.rot90(crop) if height / width >= 1.5 else crop


def main() -> None:
    with Client("127.0.0.1:6174") as client:
        for name in sys.argv[1:]:
            for line in read(client, Path(name).read_bytes()):
                print(f"{name}: {line.text} ({line.score:.2f})")


if __name__ == "__main__":
    main()

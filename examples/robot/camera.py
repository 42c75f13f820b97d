"""A camera above a belt with three parts, as frames of a stream of which the newest counts.

    python examples/robot/camera.py [--server 127.0.0.1:6174] [--frames 30] [--fps 10]

pip install ./shiva/python
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from shiva_client import Client

SIZE = 20
SHAPE = (200, 400, 3)


def pictures(frames: int, fps: float) -> Iterator[NDArray[np.uint8]]:
    """The belt moves four pixels from picture to picture, and begins again at its end."""
    began = time.monotonic()
    for i in range(frames):
        time.sleep(max(0.0, began + i / fps - time.monotonic()))
        picture = np.full(SHAPE, 60, np.uint8)
        for part in range(3):
            x, y = (100 * part + 4 * i) % (SHAPE[1] - SIZE), 20 + 60 * part
            picture[y : y + SIZE, x : x + SIZE, part] = 250
        yield picture


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", default="127.0.0.1:6174")
    parser.add_argument("--stream", default="belt-3")
    parser.add_argument("--frames", type=int, default=30)
    parser.add_argument("--fps", type=float, default=10)
    args = parser.parse_args()
    with Client(args.server) as client, client.stream("cells", args.stream) as stream:
        for result in stream.watch(pictures(args.frames, args.fps)):
            print(f"frame {result.seq}: {len(result.answer['found'])} parts")


if __name__ == "__main__":
    main()

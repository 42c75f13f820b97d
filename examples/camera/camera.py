"""Show a camera's frames with what a detector finds: with keep="latest", and with keep="all".

    python examples/camera/camera.py [VIDEO] --out camera.png

The picture is a strip of moments: on top what the camera saw, below what was on the screen at that
moment.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from shiva_client import Client, Result

Image = np.ndarray[Any, np.dtype[np.uint8]]
WIDTH, HEIGHT = 320, 240
WHITE, GREEN, DARK = (255, 255, 255), (120, 255, 120), (40, 36, 32)


def generated(fps: float) -> Iterator[Image]:
    """A ball that moves in a circle, and the time, in place of a video."""
    for i in count():
        image = np.full((HEIGHT, WIDTH, 3), 70, np.uint8)
        angle = i / fps * 1.4
        at = (int(WIDTH * (0.5 + 0.38 * math.cos(angle))), int(HEIGHT * (0.5 + 0.3 * math.sin(angle))))
        cv2.circle(image, at, 26, (40, 110, 250), -1, cv2.LINE_AA)
        write(image, f"{i / fps:.1f} s", (8, 24))
        yield image


def video(source: str) -> Iterator[Image]:
    """The frames of a camera, given by its number, an address or a file; a file repeats."""
    while True:
        capture = cv2.VideoCapture(int(source) if source.isdecimal() else source)
        try:
            ok, image = capture.read()
            if not ok:
                raise SystemExit(f"{source}: OpenCV reads no video there")
            while ok:
                yield np.asarray(cv2.resize(image, (WIDTH, HEIGHT)), np.uint8)
                ok, image = capture.read()
        finally:
            capture.release()


def paced(frames: Iterator[Image], fps: float, seconds: float) -> Iterator[Image]:
    """The frames at the pace of a camera, whether or not the consumer is ready."""
    began = time.monotonic()
    for i, frame in enumerate(islice(frames, int(seconds * fps))):
        time.sleep(max(0.0, began + i / fps - time.monotonic()))
        yield frame


def write(image: Image, text: str, at: tuple[int, int], color: tuple[int, int, int] = WHITE) -> None:
    for shift, ink in ((1, DARK), (0, color)):
        cv2.putText(image, text, (at[0] + shift, at[1] + shift), cv2.FONT_HERSHEY_SIMPLEX, 0.75, ink, 2, cv2.LINE_AA)


def drawn(result: Result) -> Image:
    """The frame with its boxes and its age when the answer came."""
    image: Image = result.frame.copy()
    for x, y, width, height in result.answer["boxes"].tolist():
        cv2.rectangle(image, (x, y), (x + width, y + height), GREEN, 2)
    write(image, f"{result.age:.1f} s old", (8, HEIGHT - 12), GREEN)
    return image


class Screen:
    """What a viewer sees over time, in seconds since the first frame."""

    def __init__(self) -> None:
        self._shown: list[tuple[float, Image]] = []

    def show(self, image: Image, when: float) -> None:
        self._shown.append((when, image))

    def at(self, moment: float) -> Image:
        earlier = [image for when, image in self._shown if when <= moment]
        return earlier[-1] if earlier else np.full((HEIGHT, WIDTH, 3), DARK, np.uint8)


def run(client: Client, keep: Any, frames: Iterator[Image], camera: Screen) -> Screen:
    """Push the frames, show the answers until the last frame was pushed, and print a summary.

    The camera is a screen that shows the frames at once.
    """
    screen, ages, began = Screen(), [], time.monotonic()
    with client.stream("detector", f"camera, keep {keep}", keep=keep) as stream:
        over = False

        def watched() -> Iterator[Image]:
            nonlocal over
            for frame in frames:
                camera.show(frame, time.monotonic() - began)
                yield frame
            over = True

        for result in stream.watch(watched()):
            screen.show(drawn(result), time.monotonic() - began)
            ages.append(result.age)
            if over:
                break  # discard the frames that still wait
    print(f"keep {keep}: {len(ages)} frames shown, {stream.superseded} superseded, the last was {ages[-1]:.1f} s old")
    return screen


def strip(screens: dict[str, Screen], moments: list[float]) -> Image:
    """A row of moments for each screen, with its name on the left."""
    rows = []
    for name, screen in screens.items():
        label = np.full((HEIGHT, WIDTH // 2, 3), DARK, np.uint8)
        for i, word in enumerate(name.split("\n")):
            write(label, word, (12, HEIGHT // 2 - 12 + 28 * i))
        seen = [
            cv2.copyMakeBorder(screen.at(m)[4:-4, 4:-4], 4, 4, 4, 4, cv2.BORDER_CONSTANT, value=DARK) for m in moments
        ]
        rows.append(np.hstack([label, *seen]))
    return np.asarray(cv2.resize(np.vstack(rows), None, fx=0.6, fy=0.6, interpolation=cv2.INTER_AREA), np.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "video", nargs="?", help="a file, an address, or the number of a camera; default: a generated one"
    )
    parser.add_argument("--server", default="127.0.0.1:6174", help="HOST:PORT of shivad (%(default)s)")
    parser.add_argument("--fps", type=float, default=30, help="of the camera (%(default)s)")
    parser.add_argument("--seconds", type=float, default=4, help="for each of the two (%(default)s)")
    parser.add_argument("--out", type=Path, help="where the picture goes, a PNG or JPEG")
    args = parser.parse_args()

    def frames() -> Iterator[Image]:
        return video(args.video) if args.video else generated(args.fps)

    screens = {"camera": Screen()}
    with Client(args.server) as client:
        client.infer("detector", next(frames()))  # fails at once if there is no such model
        for keep, camera in (("latest", screens["camera"]), ("all", Screen())):
            screens[f"keep =\n{keep}"] = run(client, keep, paced(frames(), args.fps, args.seconds), camera)
    if args.out:
        picture = strip(screens, [args.seconds * share for share in (0.25, 0.5, 0.75, 0.99)])
        if not cv2.imwrite(str(args.out), picture):
            raise SystemExit(f"{args.out}: OpenCV could not write it")


if __name__ == "__main__":
    main()

"""Serve the three models, read 50 pictures as the package itself does, and see what cameras get.

    python run.py [--shivad bin/shivad] [--pictures 50] [--seconds 10] [--picture ocr.png]

It fails if a text is not the package's. Run by "make run EXAMPLE=ocr".
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from reader import Line, lines, read
from shiva_client import Client, ShivaError

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
from serving import server, wait_for

MODELS = {"ocr_det": 2, "ocr_cls": 1, "ocr_rec": 1}
"""And their processes: the detectors do most of the work."""
FPS = 10
"""Frames per second of each camera."""
CROWD = 4
"""Cameras, where the package in one process is compared."""
PATIENCE = 600
"""Seconds for a picture whose text must be right, however slow the machine is."""
WORDS = ["BATCH", "LOT", "SERIAL No.", "MODEL", "TYPE", "REV", "MADE IN", "CHECKED BY", "NET WEIGHT", "FUSE"]
WORDS += ["Handle with care", "This side up", "Fragile", "Keep dry", "Do not open", "Warning", "Inspected", "Passed"]


def words(rng: random.Random) -> str:
    kind = rng.randrange(3)
    if kind == 0:
        return f"{rng.choice(WORDS)} {rng.randrange(10**6):06d}"
    if kind == 1:
        return f"{rng.randrange(1, 29):02d}.{rng.randrange(1, 13):02d}.{rng.randrange(2020, 2030)}"
    return " ".join(rng.choices(WORDS, k=rng.randrange(2, 4)))


def label(seed: int, width: int = 480, height: int = 440) -> Any:
    """A picture of a label: lines of text, some of it upside down, under a camera's noise."""
    rng, noise = random.Random(seed), np.random.default_rng(seed)
    paper, ink = rng.randrange(190, 250), rng.randrange(0, 70)
    picture = Image.new("RGB", (width, height), (paper, paper - 5, paper - rng.randrange(5, 30)))
    draw = ImageDraw.Draw(picture)
    y = rng.randrange(12, 30)
    while True:
        font = ImageFont.load_default(size=rng.randrange(22, 44))
        text = words(rng)
        box = draw.textbbox((0, 0), text, font=font)
        x = rng.randrange(10, 60)
        if y + box[3] > height - 10:
            break
        if x + box[2] < width - 10:
            draw.text((x, y), text, fill=(ink, ink, ink), font=font)
        y += int(box[3] + rng.randrange(10, 40))
    if rng.random() < 0.2:
        picture = picture.rotate(180)
    pixels = np.asarray(picture)[:, :, ::-1].astype(np.float32) + noise.normal(0, 6, (height, width, 3))
    return np.clip(pixels, 0, 255).astype(np.uint8)


def encoded(kind: str, pixels: Any) -> bytes:
    return bytes(cv2.imencode(kind, pixels)[1])


def compare(client: Client, pictures: int) -> int:
    """Read pictures both ways, and return how many differ."""
    from rapidocr_onnxruntime import RapidOCR

    package, different, count = RapidOCR(), 0, 0
    print(f"reading {pictures} pictures twice", flush=True)
    for seed in range(pictures):
        pixels = label(seed)
        result, _ = package(pixels)
        wanted = [one[1] for one in result or []]
        got = [line.text for line in read(client, encoded(".png", pixels), PATIENCE)]
        count += len(wanted)
        if got != wanted:
            different += 1
            print(f"picture {seed}: the package reads {wanted}, the models {got}", file=sys.stderr)
        if (seed + 1) % 10 == 0:
            print(f"  {seed + 1} of {pictures}", flush=True)
    print(f"{pictures - different} of {pictures} pictures, {count} lines: the same texts as the package's")
    return different


def drawn(pixels: Any, found: list[Line]) -> Any:
    """A picture with its boxes, next to the text that was read."""
    side = Image.new("RGB", (pixels.shape[1] * 2, pixels.shape[0]), "white")
    marked = pixels.copy()
    cv2.polylines(marked, [np.int32(line.corners) for line in found], True, (40, 160, 40), 2, cv2.LINE_AA)
    side.paste(Image.fromarray(marked[:, :, ::-1]), (0, 0))
    draw = ImageDraw.Draw(side)
    for line in found:
        top, bottom = line.corners[:, 1].min(), line.corners[:, 1].max()
        font = ImageFont.load_default(size=max(14, float(bottom - top) * 0.7))
        draw.text((pixels.shape[1] + 20, float(top)), line.text, fill=(20, 80, 20), font=font)
    return np.asarray(side)


class Camera(threading.Thread):
    """A camera that sends frames at a fixed rate, whether or not a model is ready."""

    def __init__(self, address: str, number: int, seconds: float) -> None:
        super().__init__()
        self._address, self._number, self._seconds = address, number, seconds
        self.ages: list[float] = []
        self.superseded = self.unread = 0
        self.read = 0
        """Frames whose text arrived while the camera was still sending."""

    def run(self) -> None:
        files = [encoded(".jpg", label(100 * self._number + i)) for i in range(8)]
        began = time.monotonic()

        def frames() -> Iterator[Any]:
            for i in range(int(self._seconds * FPS)):
                time.sleep(max(0.0, began + i / FPS - time.monotonic()))
                yield np.frombuffer(files[i % len(files)], np.uint8)

        with (
            Client(self._address) as client,
            client.stream("ocr", f"camera {self._number}", keep="latest") as stream,
        ):
            for result in stream.watch(frames()):
                try:
                    lines(result.answer)
                except ShivaError as error:  # such as a deadline that has passed
                    self.unread += 1
                    print(f"camera {self._number}: {error}", file=sys.stderr)
                    continue
                self.ages.append(result.age)
                self.read += time.monotonic() - began < self._seconds
            self.superseded = stream.superseded


def cameras(address: str, seconds: float) -> None:
    print(f"\n| cameras of {FPS} frames/s | read, frames/s | of each | age, median | age, 95 % | superseded | failed |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for n in (1, 2, 4, 8):
        all_ = [Camera(address, i, seconds) for i in range(n)]
        for one in all_:
            one.start()
        for one in all_:
            one.join()
        ages = sorted(age for one in all_ for age in one.ages)
        if not ages:
            raise SystemExit(f"{n} cameras: no frame was read")
        rate, late = sum(one.read for one in all_) / seconds, ages[int(len(ages) * 0.95)]
        dropped, failed = sum(one.superseded for one in all_), sum(one.unread for one in all_)
        print(
            f"| {n} | {rate:.1f} | {rate / n:.1f} | {statistics.median(ages):.2f} s | {late:.2f} s "
            f"| {dropped} | {failed} |",
            flush=True,
        )


def beside(address: str, seconds: float) -> None:
    """How many frames four cameras have read that send again on each answer, by the pipeline and in one process."""
    from rapidocr_onnxruntime import RapidOCR

    files = [encoded(".jpg", label(i)) for i in range(8)]
    clients = [Client(address) for _ in range(CROWD)]
    packages = [RapidOCR(intra_op_num_threads=1, inter_op_num_threads=1) for _ in range(CROWD)]
    ways: dict[str, list[Callable[[bytes], object]]] = {
        "the pipeline": [partial(read, client, timeout=PATIENCE) for client in clients],
        "the package, a thread for each camera": [*packages],
        "the package, one camera after the other": [RapidOCR()],
    }
    print(f"\n| {CROWD} cameras that send again on each answer | read, frames/s |\n| --- | --- |")
    for name, readers in ways.items():
        counts, until = [0] * len(readers), time.monotonic() + seconds

        def send(reader: int, readers: Any = readers, counts: Any = counts, until: float = until) -> None:
            while time.monotonic() < until:
                readers[reader](files[counts[reader] % len(files)])
                counts[reader] += 1

        with ThreadPoolExecutor(len(readers)) as threads:
            began = time.monotonic()
            list(threads.map(send, range(len(readers))))
        print(f"| {name} | {sum(counts) / (time.monotonic() - began):.1f} |", flush=True)
    for client in clients:
        client.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shivad", default="bin/shivad", help="the server (%(default)s)")
    parser.add_argument("--pictures", type=int, default=50, help="to read as the package does; 0: none (%(default)s)")
    parser.add_argument("--seconds", type=float, default=10, help="for each number of cameras; 0: none (%(default)s)")
    parser.add_argument("--picture", type=Path, help="where a picture with the boxes goes")
    args = parser.parse_args()
    with server(args.shivad, HERE, MODELS) as address, Client(address) as client:
        wait_for(lambda: read(client, encoded(".png", label(0))))
        different = compare(client, args.pictures) if args.pictures else 0
        if args.picture:
            pixels = label(3)
            picture = Image.fromarray(drawn(pixels, read(client, encoded(".png", pixels), PATIENCE)))
            picture.resize((640, 293), Image.Resampling.LANCZOS).quantize(16).save(args.picture, optimize=True)
        if args.seconds:
            cameras(address, args.seconds)
            beside(address, args.seconds)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())

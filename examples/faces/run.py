"""Serve the two models, and compare the points of faces with those of the package itself.

    python run.py [--shivad bin/shivad] [--picture faces.jpg]

It fails unless they are the same within a pixel. Run by "make run EXAMPLE=faces".
"""

from __future__ import annotations

import argparse
import io
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from container import FaceLandmark, face_detection_to_roi, finder
from PIL import Image, ImageDraw
from shiva_client import Client, ShivaError

HERE = Path(__file__).resolve().parent
PATIENCE = 60
"""Seconds for a picture, however slow the machine is."""


def portrait() -> Image.Image:
    """Eileen Collins, an astronaut: a picture of NASA, in the public domain, which scikit-image has."""
    spec = find_spec("skimage")
    if spec is None or spec.origin is None:
        raise SystemExit("run.py: the picture is in scikit-image, which is not installed")
    return Image.open(Path(spec.origin).parent / "data" / "astronaut.png").convert("RGB")


def pictures() -> Iterator[Image.Image]:
    """Pictures of one to four faces: as it is, mirrored, turned, smaller, and side by side."""
    face = portrait()
    mirrored = face.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    turned = [face.rotate(angle, Image.Resampling.BICUBIC) for angle in (-25, -10, 10, 25)]
    yield from (face, mirrored, *turned, face.resize((300, 300)))
    for four in ((face, mirrored, turned[0], turned[3]), (turned[1], turned[2], mirrored, face)):
        wide = Image.new("RGB", (1024, 1024))
        for i, one in enumerate(four):
            wide.paste(one, (512 * (i % 2), 512 * (i // 2)))
        yield wide
        yield wide.crop((0, 0, 1024, 512))


def encoded(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def ask(client: Client, file: bytes) -> Any:
    """The points of each face, [faces, 468, 2], in pixels of the picture."""
    return client.infer("faces", {"image": np.frombuffer(file, np.uint8)}, timeout=PATIENCE)["points"]


@contextmanager
def server(shivad: str) -> Iterator[str]:
    """A shivad that runs the containers, one of each model."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as folder:
        config = [f'[containers]\nlisten = ["ipc://{folder}/containers.sock"]\n']
        for name in ("faces_find", "faces_look"):
            command = [sys.executable, str(HERE / "container.py"), name]
            config.append(f'[[container]]\nname = "{name}"\ncommand = {command}\n')
        path = Path(folder) / "faces.toml"
        path.write_text("\n".join([*config, (HERE / "pipeline.toml").read_text()]))
        doors = ["--tcp", address, "--rest", "", "--grpc", "", "--admin", "", "--log-level", "error"]
        process = subprocess.Popen([shivad, "--config", str(path), *doors])
        try:
            yield address
        finally:
            process.terminate()
            process.wait(60)


def ready(client: Client, file: bytes) -> None:
    """Wait for the containers, which have their networks to load."""
    until = time.monotonic() + 120
    while True:
        try:
            ask(client, file)
            return
        except ShivaError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def compare(client: Client) -> bool:
    """Ask both about all pictures, and return whether they agree."""
    detect, landmarks = finder(), FaceLandmark()
    worst, faces, agree = 0.0, 0, True
    for number, picture in enumerate(pictures()):
        size = picture.size
        each = [landmarks(picture, face_detection_to_roi(face, size)) for face in detect(picture)]
        wanted = np.float32([[(point.x, point.y) for point in face] for face in each if face]).reshape(-1, 468, 2)
        wanted *= size
        got = ask(client, encoded(picture))
        got = got[~np.isnan(got).any((1, 2))]
        if got.shape != wanted.shape:
            print(f"picture {number}: the package finds {len(wanted)} faces, the pipeline {len(got)}", file=sys.stderr)
            agree = False
            continue
        worst, faces = max(worst, float(abs(got - wanted).max(initial=0))), faces + len(got)
    print(f"{faces} faces in {number + 1} pictures: points differ by {worst:.2f} pixels at most")
    return agree and faces > 0 and worst < 1


def drawn(picture: Image.Image, points: Any) -> Image.Image:
    """A picture with the points of its faces."""
    draw = ImageDraw.Draw(picture)
    for x, y in points.reshape(-1, 2):
        draw.ellipse([x - 1, y - 1, x + 1, y + 1], fill=(90, 255, 120))
    return picture


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shivad", default="bin/shivad", help="the server (%(default)s)")
    parser.add_argument("--picture", type=Path, help="where a picture with the points goes")
    args = parser.parse_args()
    face = portrait()
    with server(args.shivad) as address, Client(address) as client:
        ready(client, encoded(face))
        agree = compare(client)
        if args.picture:
            around = face.crop((0, 0, 400, 300))
            drawn(around, ask(client, encoded(around))).save(args.picture, quality=85)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())

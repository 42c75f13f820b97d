"""Serve the models, and compare the points of faces and irises with those of the package itself.

    python run.py [--shivad bin/shivad] [--picture faces.jpg]

It fails unless they are the same within a pixel. Run by "make run EXAMPLE=faces".
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from container import (
    IRIS,
    POINTS,
    FaceLandmark,
    IrisLandmark,
    face_detection_to_roi,
    finder,
    iris_roi_from_face_landmarks,
)
from PIL import Image, ImageDraw
from shiva_client import Client

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
from serving import server, wait_for

MODELS = dict.fromkeys(("faces_find", "faces_look", "faces_left", "faces_right"), 1)
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


def ask(client: Client, file: bytes) -> tuple[Any, Any]:
    """The points of each face, [faces, 468, 2], and of its irises, [faces, 2, 5, 2], in pixels of the picture."""
    answer = client.infer("faces", {"image": np.frombuffer(file, np.uint8)}, timeout=PATIENCE)
    points, seen = answer["points"], ~np.isnan(answer["points"]).any((1, 2))
    return points[seen], np.stack([answer["left"], answer["right"]], axis=1)[seen]


def package() -> Callable[[Image.Image], tuple[Any, Any]]:
    """The same by the package's own chain."""
    detect, landmarks, iris = finder(), FaceLandmark(), IrisLandmark()

    def find(picture: Image.Image) -> tuple[Any, Any]:
        points, irises = [], []
        for face in detect(picture):
            if found := landmarks(picture, face_detection_to_roi(face, picture.size)):
                points.append(found)
                regions = iris_roi_from_face_landmarks(found, picture.size)
                irises += [iris(picture, region, right).iris for right, region in enumerate(regions)]
        return (
            pixels(points, picture).reshape(-1, POINTS, 2),
            pixels(irises, picture).reshape(-1, 2, IRIS, 2),
        )

    return find


def pixels(places: Any, picture: Image.Image) -> Any:
    return np.float32([[(one.x, one.y) for one in several] for several in places]).reshape(-1, 2) * picture.size


def compare(client: Client) -> bool:
    """Ask both about all pictures, and return whether they agree."""
    find, worst, faces = package(), np.zeros(2), 0
    for number, picture in enumerate(pictures()):
        wanted, got = find(picture), ask(client, encoded(picture))
        if len(got[0]) != len(wanted[0]):
            print(
                f"picture {number}: the package finds {len(wanted[0])} faces, the pipeline {len(got[0])}",
                file=sys.stderr,
            )
            return False
        worst = np.maximum(worst, [abs(a - b).max(initial=0) for a, b in zip(got, wanted, strict=True)])
        faces += len(got[0])
    print(f"{faces} faces in {number + 1} pictures: {worst[0]:.2f} pixels between points at most, ", end="")
    print(f"{worst[1]:.2f} between those of irises")
    return faces > 0 and bool((worst < 1).all())


def drawn(picture: Image.Image, points: Any, irises: Any) -> Image.Image:
    """A picture with the points of its faces, and its irises."""
    draw = ImageDraw.Draw(picture)
    for x, y in points.reshape(-1, 2):
        draw.ellipse([x - 1, y - 1, x + 1, y + 1], fill=(90, 255, 120))
    for iris in irises.reshape(-1, IRIS, 2):
        (x, y), radius = iris[0], float(np.linalg.norm(iris[1:] - iris[0], axis=1).mean())
        draw.ellipse([x - radius, y - radius, x + radius, y + radius], outline=(90, 160, 255), width=2)
    return picture


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shivad", default="bin/shivad", help="the server (%(default)s)")
    parser.add_argument("--picture", type=Path, help="where a picture with the points goes")
    args = parser.parse_args()
    face = portrait()
    with server(args.shivad, HERE, MODELS) as address, Client(address) as client:
        wait_for(lambda: ask(client, encoded(face)))
        agree = compare(client)
        if args.picture:
            around = face.crop((0, 0, 400, 300))
            drawn(around, *ask(client, encoded(around))).save(args.picture, quality=85)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())

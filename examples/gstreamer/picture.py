"""Make gstreamer.png: three pictures of a pipeline, and what left on its second pad.

    python examples/gstreamer/picture.py

It needs what the page says, the detector of examples/camera, OpenCV and Pillow.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent
WIDTH, HEIGHT, FRAMES = 400, 240, (4, 14, 24)
PAPER, INK = (250, 250, 250), (50, 50, 50)


def ball(color: str, width: int) -> str:
    """A moving ball, whose path depends on the width of its video."""
    video = f"video/x-raw,format=AYUV,width={width},height={HEIGHT - 20},framerate=10/1"
    return (
        f"videotestsrc num-buffers=25 pattern=ball animation-mode=frames foreground-color={color} "
        f"background-color=0x00000000 ! {video} ! c."
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ground = (
            "videotestsrc num-buffers=25 pattern=solid-color foreground-color=0xff3a3e46 "
            f"! video/x-raw,width={WIDTH},height={HEIGHT},framerate=10/1 ! c."
        )
        pipeline = (
            "compositor name=c ! videoconvert ! shivainfer name=i keep=all model=detector ! filesink location=video "
            f"i.results ! filesink location=results {ground} {ball('0xffff8000', WIDTH)} {ball('0xff40a0ff', 250)}"
        )
        plugins = str(HERE.parents[1] / "shiva/python/src/shiva_client/gstreamer")
        env = os.environ | {"GST_PLUGIN_PATH": plugins, "PATH": "/usr/bin:/bin"}
        subprocess.run(["gst-launch-1.0", "-q", *pipeline.split()], cwd=folder, env=env, check=True)
        frames = np.fromfile(Path(folder) / "video", np.uint8).reshape(-1, HEIGHT, WIDTH, 3)
        lines = (Path(folder) / "results").read_text().splitlines()
    gap = np.full((HEIGHT, 12, 3), PAPER, np.uint8)
    row = np.hstack([part for i in FRAMES for part in (frames[i][:, :, ::-1], gap)][:-1])
    sheet = np.full((HEIGHT + 28 * len(FRAMES) + 16, row.shape[1], 3), PAPER, np.uint8)
    sheet[:HEIGHT] = row
    for i, frame in enumerate(FRAMES):
        at = (4, HEIGHT + 30 + 28 * i)
        cv2.putText(sheet, lines[frame], at, cv2.FONT_HERSHEY_SIMPLEX, 0.5, INK, 1, cv2.LINE_AA)
    Image.fromarray(sheet[:, :, ::-1]).quantize(64).save(HERE / "gstreamer.png", optimize=True)


if __name__ == "__main__":
    main()

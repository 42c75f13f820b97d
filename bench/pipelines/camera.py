"""A camera, which sends a picture, waits for what is read in it, and sends again.

    camera.py pipeline|calls HOST:PORT SECONDS FILE

By calls it asks the first model, decodes the picture itself, cuts what was found, and sends that to
the second one. It prints "ready", waits until FILE is there, and prints, in JSON, what it did.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np

BOXES = np.float32([[x, y, x + 224, y + 224] for y in (100, 600) for x in (100, 550, 1000, 1450)])
"""What is in the picture, each brighter than the one before."""
SHADES = np.linspace(20, 230, len(BOXES), dtype=np.float32)
PATIENCE = 30.0
"""Seconds for a request, however slow the machine is."""


def picture() -> Any:
    """A JPEG of 1920x1080, under a camera's noise."""
    import cv2

    noise = np.random.default_rng(1)
    pixels = np.empty((1080, 1920, 3), np.float32)
    pixels[:] = np.linspace(60, 180, 1920)[None, :, None]
    for (x, y, right, bottom), shade in zip(BOXES.astype(int), SHADES, strict=True):
        pixels[y:bottom, x:right] = shade
    pixels += noise.normal(0, 3, pixels.shape)
    quality = [cv2.IMWRITE_JPEG_QUALITY, 85]
    return cv2.imencode(".jpg", np.clip(pixels, 0, 255).astype(np.uint8), quality)[1].ravel()


def pipeline(client: Any, file: Any) -> Any:
    return client.infer("signs", {"image": file}, timeout=PATIENCE)["look.shade"]


def calls(client: Any, file: Any) -> Any:
    import simplejpeg

    boxes = client.infer("find", {"image": file}, timeout=PATIENCE)["boxes"]
    pixels = simplejpeg.decode_jpeg(file)
    cuts = np.stack([pixels[y:bottom, x:right] for x, y, right, bottom in boxes.astype(int)])
    return client.infer("read", {"image": cuts}, timeout=PATIENCE)["shade"]


def main() -> None:
    from shiva_client import Client

    ask = {"pipeline": pipeline, "calls": calls}[sys.argv[1]]
    file, frames = picture(), 0
    with Client(sys.argv[2]) as client:
        ask(client, file)  # imports what it needs
        print("ready", flush=True)
        while not os.path.exists(sys.argv[4]):
            time.sleep(0.001)
        began, processor = time.monotonic(), time.process_time()
        while time.monotonic() < began + float(sys.argv[3]):
            shades = ask(client, file)
            if shades.shape != SHADES.shape or abs(shades - SHADES).max() > 5:
                raise SystemExit(f"expected shades {SHADES}, got {shades}")
            frames += 1
        processor = time.process_time() - processor
        print(json.dumps({
            "frames": frames, "seconds": time.monotonic() - began, "processor": processor, "file": file.size,
        }))


if __name__ == "__main__":
    main()

"""A detector of brightly coloured things. It takes 100 ms for a picture, like larger models.

pip install ./containers/python opencv-python-headless
python examples/camera/container.py
"""

from __future__ import annotations

import time
from typing import Any

import cv2
import numpy as np
from shiva_container import Tensor, model, serve

SECONDS = 0.1  # for each picture


@model(
    name="detector",
    batched=False,
    inputs=[Tensor("image", "UINT8", [-1, -1, 3])],
    outputs=[Tensor("boxes", "INT32", [-1, 4])],
)
def detector(image: Any) -> Any:
    """The boxes (x, y, width, height) of bright colours in a picture (height, width, BGR)."""
    end = time.monotonic() + SECONDS
    hsv = cv2.cvtColor(image, cv2.COLOR_BGR2HSV)
    mask = cv2.inRange(hsv, np.array([0, 150, 100]), np.array([180, 255, 255]))
    outlines, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    boxes = [cv2.boundingRect(outline) for outline in outlines if cv2.contourArea(outline) > 50]
    time.sleep(max(0.0, end - time.monotonic()))
    return np.array(boxes, np.int32).reshape(-1, 4)


if __name__ == "__main__":
    serve()

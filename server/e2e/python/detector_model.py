"""A model that detects white rectangles, with the answers of a YOLO network."""

import time

import numpy as np
from shiva_container import Tensor, model, serve
from shiva_container.detections import ROWS, yologeneric

SIDE, CLASSES = 64, 3


@model(
    name="rectangles",
    inputs=[Tensor("image", "UINT8", [-1, SIDE, SIDE, 3])],
    outputs=[Tensor("detections", "FP32", [-1, *ROWS])],
)
def rectangles(image: np.ndarray) -> np.ndarray:
    time.sleep(0.005)  # so that images wait for each other
    output = np.zeros((len(image), 4 + CLASSES, 10), "f4")
    for one, cells in zip(image, output, strict=True):
        y, x = np.nonzero(one[:, :, 0] == 255)
        if len(x) > 0:
            left, right, top, bottom = x.min(), x.max() + 1, y.min(), y.max() + 1
            cells[:4, 0] = (left + right) / 2, (top + bottom) / 2, right - left, bottom - top
            cells[4 + len(x) % CLASSES, 0] = 0.75
    return yologeneric(output, SIDE, SIDE)


serve()

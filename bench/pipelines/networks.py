"""One of two networks that sleep, as while a graphics card works: find, or read.

    networks.py find|read SERVERS

It prints a line for each picture that it decodes.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import cv2
import numpy as np
import simplejpeg
from camera import BOXES
from shiva_container import Image, Tensor, model, serve

decode = simplejpeg.decode_jpeg


def counted(*args: Any, **options: Any) -> Any:
    os.write(1, b"decoded\n")
    return decode(*args, **options)


def find() -> None:
    cv2.setNumThreads(1)  # as the server tells each of two processes on two processors

    @model(
        name="find",
        batched=True,
        inputs=[Image("image", height=640, width=640, resize="letterbox")],
        outputs=[Tensor("boxes", "FP32", [-1, 4], ragged="count"), Tensor("count", "INT32", [-1])],
        max_batch=16,
    )
    def detect(image: Any) -> Any:
        """The same boxes in each picture, in its pixels."""
        time.sleep(0.004 + 0.001 * len(image))
        return [BOXES] * len(image)


def read() -> None:
    @model(
        name="read",
        batched=True,
        inputs=[Image("image", height=96, width=96, resize="stretch", regions=True)],
        outputs=[Tensor("shade", "FP32", [-1])],
        max_batch=64,
    )
    def classify(image: Any) -> Any:
        """How bright each region is."""
        time.sleep(0.016 + 0.00005 * len(image))
        return np.float32([one.mean() for one in image])


if __name__ == "__main__":
    simplejpeg.decode_jpeg = counted
    {"find": find, "read": read}[sys.argv[1]]()
    serve(servers=sys.argv[2])

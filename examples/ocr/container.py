"""The three models of rapidocr-onnxruntime as containers: ocr_det, ocr_cls and ocr_rec.

    python container.py ocr_det

Pre- and postprocessing are the package's own; so are the weights, which are in its wheel.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from rapidocr_onnxruntime.ch_ppocr_cls import TextClassifier
from rapidocr_onnxruntime.ch_ppocr_det import TextDetector
from rapidocr_onnxruntime.ch_ppocr_rec import TextRecognizer
from rapidocr_onnxruntime.main import DEFAULT_CFG_PATH, RapidOCR
from rapidocr_onnxruntime.utils import read_yaml, update_model_path
from shiva_container import Image, Tensor, model, serve

# Lines of text differ in size, so they are sent one after the other, with their heights and widths.
LINES = [Tensor("pixels", "UINT8", [-1]), Tensor("sizes", "INT32", [-1, 2])]


def part(name: str) -> Any:
    """The package's settings of one of the three. Several processes share the cores: one thread each."""
    config = update_model_path(read_yaml(DEFAULT_CFG_PATH))[name]
    return {**config, "intra_op_num_threads": 1, "inter_op_num_threads": 1}


def cut(pixels: Any, sizes: Any) -> list[Any]:
    ends = np.cumsum(sizes.prod(axis=1) * 3)
    lines = np.split(pixels, ends[:-1])
    return [line.reshape(height, width, 3) for line, (height, width) in zip(lines, sizes, strict=True)]


def detector() -> None:
    detect = TextDetector(part("Det"))

    @model(
        name="ocr_det",
        batched=False,
        inputs=[Image("image", channels="bgr")],
        outputs=[Tensor("boxes", "FP32", [-1, 4, 2])],
    )
    def ocr_det(image: Any) -> Any:
        """The corners of each line of text in a picture of any size, in reading order."""
        boxes, _ = detect(image)
        if boxes is None or len(boxes) == 0:
            return np.empty((0, 4, 2), np.float32)
        return np.float32(RapidOCR.sorted_boxes(boxes))


def classifier() -> None:
    settings = part("Cls")
    classify = TextClassifier(settings)

    @model(name="ocr_cls", batched=False, inputs=LINES, outputs=[Tensor("upside_down", "BOOL", [-1])])
    def ocr_cls(pixels: Any, sizes: Any) -> Any:
        """Which lines are upside down."""
        _, results, _ = classify(cut(pixels, sizes))
        return [label == "180" and score > settings["cls_thresh"] for label, score in results]


def recogniser() -> None:
    recognise = TextRecognizer(part("Rec"))

    @model(
        name="ocr_rec",
        batched=False,
        inputs=LINES,
        outputs=[Tensor("text", "BYTES", [-1]), Tensor("score", "FP32", [-1])],
    )
    def ocr_rec(pixels: Any, sizes: Any) -> Any:
        """What is written in each line."""
        results, _ = recognise(cut(pixels, sizes))
        return np.array([one[0] for one in results], object), np.float32([one[1] for one in results])


if __name__ == "__main__":
    {"ocr_det": detector, "ocr_cls": classifier, "ocr_rec": recogniser}[sys.argv[1]]()
    serve()

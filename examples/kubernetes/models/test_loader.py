"""The loader serves users' files, or tells why it cannot."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import loader
import numpy as np
import onnx
import pytest
from loader import Unusable, find, read
from onnx import TensorProto, helper
from shiva_container import Batch, Model, models
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LogisticRegression

DIGITS = Path(__file__).parents[2] / "digits" / "digits.onnx"


@pytest.fixture(autouse=True)
def no_models_left_over() -> Iterator[None]:
    yield
    models._declared.clear()


def one(path: Path, **environment: str) -> Model[..., Any]:
    (made,) = read(find(path), environment)
    if made.warmup_hook:
        made.warmup_hook()
    return made


def onnx_file(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> Path:
    graph = helper.make_graph(nodes, "graph", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def value(name: str, shape: list[Any], kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def test_a_network_whose_first_dimension_counts_rows() -> None:
    made = one(DIGITS)
    assert (str(made), made.batched, made.platform) == ("digits/1", True, "onnxruntime")
    assert [str(tensor) for tensor in made.inputs] == ["image UINT8 [-1, 8, 8]"]
    assert [str(tensor) for tensor in made.outputs] == ["scores FP32 [-1, 10]", "label INT64 [-1]"]
    scores, label = made(np.zeros((3, 8, 8), np.uint8))
    assert (scores.shape, label.shape) == ((3, 10), (3,))


def test_the_environment_names_it() -> None:
    assert str(one(DIGITS, MODEL_NAME="mine", MODEL_VERSION="4")) == "mine/4"


def test_a_network_of_fixed_shapes_takes_one_request_at_a_time(tmp_path: Path) -> None:
    path = onnx_file(
        tmp_path / "fixed.onnx", [helper.make_node("Neg", ["x"], ["y"])], [value("x", [1, 3])], [value("y", [1, 3])]
    )
    made = one(path)
    assert (made.batched, made.inputs[0].shape) == (False, (1, 3))
    assert made(np.float32([[1, 2, 3]]))[0].tolist() == [[-1, -2, -3]]


def test_dimensions_of_other_names_are_no_rows(tmp_path: Path) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["found"]), helper.make_node("Transpose", ["found"], ["y"])]
    path = onnx_file(tmp_path / "a.onnx", nodes, [value("x", ["n"])], [value("y", ["found", 1], TensorProto.INT64)])
    assert not one(path).batched


def test_rows_that_do_not_come_out_again_are_found_before_it_serves(tmp_path: Path) -> None:
    nodes = [helper.make_node("Concat", ["x", "x"], ["y"], axis=0)]
    path = onnx_file(tmp_path / "twice.onnx", nodes, [value("x", ["n", 2])], [value("y", ["n", 2])])
    with pytest.raises(Unusable, match="two rows went in, and output y has 4.*MODEL_BATCHED=false"):
        one(path)
    assert one(path, MODEL_NAME="other", MODEL_BATCHED="false")(np.float32([[1, 2]]))[0].tolist() == [[1, 2], [1, 2]]


def test_text_goes_in_and_out_of_a_network(tmp_path: Path) -> None:
    text = TensorProto.STRING
    path = onnx_file(
        tmp_path / "text.onnx",
        [helper.make_node("Identity", ["x"], ["y"])],
        [value("x", ["n"], text)],
        [value("y", ["n"], text)],
    )
    made = one(path)
    assert made(np.array([b"a", "ü".encode()], object))[0].tolist() == ["a", "ü"]


@pytest.mark.parametrize("suffix", loader.ESTIMATORS)
def test_a_classifier_with_labels(tmp_path: Path, suffix: str) -> None:
    iris = load_iris()
    joblib.dump(LogisticRegression(max_iter=500).fit(iris.data, iris.target_names[iris.target]), tmp_path / f"m{suffix}")
    made = one(tmp_path, MODEL_NAME="iris")
    assert [str(tensor) for tensor in made.inputs] == ["input-0 FP64 [-1, 4]"]
    assert [tensor.datatype for tensor in made.outputs] == ["BYTES", "FP64"]
    assert list(made.outputs[1].labels) == list(iris.target_names)
    species, shares = made.run([iris.data[:2]], Batch(2))
    assert species.tolist() == ["setosa", "setosa"]
    assert np.allclose(shares.sum(axis=1), 1)


def test_a_regressor_of_two_targets(tmp_path: Path) -> None:
    x = np.arange(12.0).reshape(6, 2)
    joblib.dump(RandomForestRegressor(n_estimators=2).fit(x, x), tmp_path / "forest.joblib")
    made = one(tmp_path)
    assert [str(tensor) for tensor in made.outputs] == ["predict FP64 [-1, 2]"]
    assert made.run([x], Batch(6))[0].shape == (6, 2)


PYTHON = """
from shiva_container import Tensor, model, serve
import beside

X = Tensor("x", "FP32", [-1, 2])


@model(name="double", inputs=[X], outputs=[Tensor("y", "FP32", [-1, 2])])
def double(x):
    return x * beside.FACTOR

MORE
serve()
"""


@pytest.fixture
def python_file(tmp_path: Path) -> Any:
    (tmp_path / "beside.py").write_text("import numpy as np\nFACTOR = np.float32(2)\n")
    (tmp_path / "weights.onnx").write_bytes(b"belongs to model.py")

    def write(more: str = "") -> Path:
        sys.modules.pop("beside", None)
        (tmp_path / "model.py").write_text(PYTHON.replace("MORE", more))
        return tmp_path

    return write


def test_a_python_file_goes_before_what_lies_beside_it(python_file: Any) -> None:
    made = one(python_file(), MODEL_NAME="mine")
    assert str(made) == "mine/1"
    assert made(np.float32([[1, 2]])).tolist() == [[2, 4]]
    assert str(one(python_file())) == "double/1"


def test_a_python_file_with_two_models_keeps_their_names(python_file: Any, caplog: pytest.LogCaptureFixture) -> None:
    more = '@model(name="half", inputs=[X], outputs=[X])\ndef half(x):\n    return x / 2\n'
    made = read(find(python_file(more)), {"MODEL_NAME": "mine"})
    assert [str(each) for each in made] == ["double/1", "half/1"]
    assert "none is called mine" in caplog.text


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({}, "expected model.py, or a file .*, and there is nothing"),
        ({"weights.pt": b""}, "and there is weights.pt"),
        ({"a.onnx": b"", "b.onnx": b""}, "a.onnx, b.onnx: expected one of them"),
        ({"a.pkl": b"", "b.joblib": b""}, "a.pkl, b.joblib: expected one of them"),
        ({"model.py": b"pass"}, "no function is decorated with @model"),
    ],
)
def test_what_cannot_be_served_is_refused(tmp_path: Path, files: dict[str, bytes], text: str) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(Unusable, match=text):
        one(tmp_path)


def test_other_refusals(tmp_path: Path) -> None:
    joblib.dump({"no": "estimator"}, tmp_path / "m.pkl")
    with pytest.raises(Unusable, match="expected a fitted estimator .* got dict"):
        one(tmp_path)
    joblib.dump(LogisticRegression(), tmp_path / "m.pkl")
    with pytest.raises(Unusable, match="got LogisticRegression"):
        one(tmp_path)
    with pytest.raises(Unusable, match="there is no such file or folder"):
        one(tmp_path / "nowhere")
    with pytest.raises(Unusable, match="MODEL_BATCHED=yes: expected true or false"):
        one(DIGITS, MODEL_BATCHED="yes")
    with pytest.raises(Unusable, match="expected a file"):
        one(Path(__file__).with_name("Containerfile"))


def test_the_program_says_it_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert loader.main([str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert loader.main([]) == 2

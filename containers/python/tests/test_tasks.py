"""Networks that are served as detectors and classifiers of pictures."""

from __future__ import annotations

import logging
import runpy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from shiva_container import Batch, command, models
from shiva_container.files import Network, Port, Unusable, read
from shiva_container.images import Regions
from shiva_container.proof import Verdict, Way, prove
from shiva_container.tasks import form, seeing

DOTS = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "ultralytics" / "dots.py"))
RED, GREEN, BLUE = (210, 40, 40), (40, 170, 60), (50, 80, 220)


@pytest.fixture(autouse=True)
def no_models_left_over() -> Iterator[None]:
    yield
    models._declared.clear()


@pytest.fixture(params=[False, True], ids=["dynamic", "static"])
def dots(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "dots.onnx"
    path.write_bytes(DOTS["network"](static=request.param).SerializeToString())
    return path


def scene(height: int, width: int, *inks: tuple[int, int, int]) -> Any:
    """A grey picture with a dot of radius 30 for each ink, the nth at x = 100 + 150 n, y = 120."""
    picture = np.full((height, width, 3), 225, np.uint8)
    for n, ink in enumerate(inks):
        cv2.circle(picture, (100 + 150 * n, 120), 30, ink, -1, cv2.LINE_AA)
    return picture


def ask(made: Any, *pictures: Any) -> list[Any]:
    """Boxes, scores, classes and labels of each picture, which are sent as PNG files."""
    files = [cv2.imencode(".png", picture[:, :, ::-1])[1].tobytes() for picture in pictures]
    rows = np.array([*files, None], object)[:-1]
    *parts, counts = made.run([rows], Batch(len(files)))
    ends = np.cumsum(counts)[:-1]
    return list(zip(*(np.split(part, ends) for part in parts), strict=True))


def made(path: Path) -> Any:
    network = read(path)
    verdict = prove(network)
    found = form(network, verdict, path)
    assert found is not None
    return seeing(network, verdict, found, name="m")


def test_boxes_in_the_pixels_of_the_client_s_picture(dots: Path) -> None:
    detector = made(dots)
    pictures = [scene(480, 640, RED, BLUE), scene(640, 500, GREEN), scene(320, 320)]
    if detector.max_batch == 1:
        answers = [ask(detector, picture)[0] for picture in pictures]
    else:
        answers = ask(detector, *pictures)
    for (boxes, scores, classes, labels), inks in zip(answers, (["red", "blue"], ["green"], []), strict=True):
        assert sorted(labels) == sorted(inks)
        assert (scores[:-1] >= scores[1:]).all()
        for box, label, kind in zip(boxes, labels, classes, strict=True):
            x = 100 + 150 * inks.index(label)
            assert np.abs(box - [x - 30, 90, x + 30, 150]).max() < 8, (label, box)
            assert kind == ["red", "green", "blue"].index(label)


def test_boxes_in_regions_are_in_the_pixels_of_the_whole_picture(dots: Path) -> None:
    """A detector of a file as the second of two: a large picture, of which it sees a part, also one
    that is turned. A row of a picture that cannot be decoded fails alone."""
    detector = made(dots)
    assert detector.inputs[0].json()["image"]["regions"] is True
    picture = np.full((1200, 1600, 3), 225, np.uint8)
    wanted = {"red": (400, 300), "blue": (1000, 700)}
    for ink, at in zip((RED, BLUE), wanted.values(), strict=True):
        cv2.circle(picture, at, 30, ink, -1, cv2.LINE_AA)
    turn = np.deg2rad(30)
    along, across = np.array([np.cos(turn), np.sin(turn)]) * 320, np.array([-np.sin(turn), np.cos(turn)]) * 320
    about = np.array([-along - across, along - across, along + across, across - along]) + wanted["blue"]
    left, right = (np.array([[x, 100], [x + 640, 100], [x + 640, 1060], [x, 1060]], float) for x in (100, 700))
    places = np.float32(np.stack([left, right, np.roll(left, 1, axis=0), about]) / (1600, 1200))
    for kind in (".png", ".jpg"):
        file = cv2.imencode(kind, picture[:, :, ::-1])[1].tobytes()
        for row, ink in enumerate(("red", "blue", "red", "blue")):
            batch = Batch(1)
            boxes, _, _, labels, _ = detector.run([Regions([file], [0], places[row : row + 1])], batch)
            assert labels.tolist() == [ink]
            x, y = wanted[ink]
            middle = (boxes[0, :2] + boxes[0, 2:]) / 2
            assert np.abs(middle - (x, y)).max() < 8, (kind, row, boxes)
            assert 50 <= (boxes[0, 2:] - boxes[0, :2]).min() <= 95, row
    if detector.max_batch != 1:
        batch = Batch(2)
        _, _, _, labels, counts = detector.run([Regions([file[:-400], file], [0, 1], places[:2])], batch)
        assert list(batch.errors) == [0]
        assert counts[1] == 1


def test_the_command_serves_both(dots: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["check", str(dots)]) == 0
    said = capsys.readouterr().out
    assert "model dots/1: " in said
    assert "rgb pictures, letterbox to 320 x 320" in said
    assert "model dots-raw/1: " in said
    models._declared.clear()
    assert command.main(["check", str(dots), "--as", "raw"]) == 0
    said = capsys.readouterr().out
    assert "images FP32 [-1, 3, 320, 320]" in said
    assert "raw" not in said


def test_labels_beside_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "net.onnx"
    graph = helper.make_graph(
        [helper.make_node("ReduceMean", ["x"], ["y"], axes=[2, 3], keepdims=0)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    network = read(path)
    verdict = prove(network)
    assert form(network, verdict, path) is None
    (tmp_path / "labels.txt").write_text("reddish\ngreenish\nbluish\n")
    assert command.find(tmp_path) == path
    found = form(network, verdict, path, "classify")
    assert found is not None
    classifier = seeing(network, verdict, found, name="m")
    assert "crop to 8 x 8" in str(classifier.inputs[0])
    assert list(classifier.outputs[0].labels) == ["reddish", "greenish", "bluish"]
    picture = np.zeros((1, 20, 30, 3), np.uint8)
    picture[..., 1] = 255
    assert np.allclose(classifier.run([picture], Batch(1))[0], [[0, 1, 0]], atol=1e-3)

    # A file of its own names goes before what the network says, that of a folder after it.
    network = replace(network, metadata={"names": "['r', 'g', 'b']"})
    found = form(network, verdict, path, "classify")
    assert found is not None
    assert [found.name(i) for i in range(3)] == ["r", "g", "b"]
    assert not caplog.records
    (tmp_path / "net.labels.txt").write_text("rot\ngruen\n")
    found = form(network, verdict, path, "classify")
    assert found is not None
    assert [found.name(i) for i in range(3)] == ["rot", "gruen", "2"]
    assert [one.getMessage() for one in caplog.records] == [f"{path}: there are 2 names for its 3 classes"]


METADATA = """\
description: Ultralytics YOLO11n model trained on
  coco128.yaml
license: 'AGPL-3.0 License (https://ultralytics.com/license)'
date: '2026-11-28T12:00:00'
stride: 32
task: detect
batch: 1
imgsz:
- 320
- 320
names:
  0: red
  1: 'it''s green'
  2: "blue: light"
args:
  batch: 1
  task: segment
kpt_names:
  0:
  - nose
"""


def test_openvino_files_of_ultralytics(tmp_path: Path) -> None:
    """The task is in the metadata.yaml beside the file, or inside, from an ONNX file."""
    import openvino

    bare = DOTS["network"](static=False)
    onnx.save(bare, tmp_path / "dots.onnx")
    openvino.save_model(openvino.convert_model(tmp_path / "dots.onnx"), tmp_path / "kept.xml")
    del bare.metadata_props[:]
    onnx.save(bare, tmp_path / "dots.onnx")
    for name in ("bare", "beside", "api"):
        converted = openvino.convert_model(tmp_path / "dots.onnx")
        (tmp_path / name).mkdir()
        if name == "api":  # what Ultralytics writes for OpenVINO's Model API
            for key, value in ("model_type", "YOLO"), ("labels", ["red", "green", "blue"]), ("scale_values", [255.0]):
                converted.set_rt_info(value, ["model_info", key])
        openvino.save_model(converted, tmp_path / name / "dots.xml")
    (tmp_path / "beside" / "metadata.yaml").write_text(METADATA)
    for path, label in (("kept.xml", "green"), ("beside/dots.xml", "it's green"), ("api/dots.xml", "green")):
        detector = made(tmp_path / path)
        ((_, _, _, labels),) = ask(detector, scene(320, 320, GREEN))
        assert set(labels) == {label}  # the file has FP16 weights, with which a dot is found more often
        models._declared.clear()
    network = read(tmp_path / "bare" / "dots.xml")
    assert (form(network, prove(network), tmp_path / "bare" / "dots.xml"), network.metadata) == (None, {})
    odd = b"\xff\n- a\n  : b\ntask\n:\n - c: d\nnames: [1\n" + b"x" * (2 << 20)
    (tmp_path / "bare" / "metadata.yaml").write_bytes(odd)
    assert "task" not in read(tmp_path / "bare" / "dots.xml").metadata


PICTURE = Port("images", "FP32", ("n", 3, 64, 64))


ROWS = Verdict(Way.ROWS, "")


def stub(outputs: Sequence[Any], port: Port = PICTURE, called: Sequence[str] = "abcd", **metadata: str) -> Any:
    """The detector of a network that has the same answer for each row."""
    ports = [Port(name, "FP32", ("n", *one.shape[1:])) for name, one in zip(called, outputs, strict=False)]
    network = Network("test", "cpu", [port], ports, lambda _: list(outputs), metadata)
    found = form(network, ROWS, Path("net.onnx"), "" if metadata else "detect")
    assert found is not None
    return seeing(network, ROWS, found, name="m")


def test_yolo_end_to_end() -> None:
    rows = np.zeros((1, 300, 6), np.float32)
    rows[0, :3] = [[10, 10, 20, 20, 0.5, 1], [0, 0, 8, 8, 0.9, 0], [1, 1, 2, 2, 0.1, 0]]
    detector = stub([rows], task="detect", names="['cat', 'dog']", imgsz="64")
    ((boxes, scores, classes, labels),) = ask(detector, np.zeros((128, 128, 3), np.uint8))
    assert boxes.tolist() == [[0, 0, 16, 16], [20, 20, 40, 40]]
    assert scores.tolist() == [np.float32(0.9), 0.5]
    assert (classes.tolist(), labels.tolist()) == ([0, 1], ["cat", "dog"])


def test_yolox() -> None:
    cells = np.full((1, 64 + 16 + 4, 6), -9, np.float32)
    cells[..., 4:] = 0
    cells[0, 9] = [0.5, 0.5, np.log(2), np.log(2), 0.9, 1]  # column 1, row 1 of the grid of 8 pixels
    detector = stub([cells])
    assert "bgr" in str(detector.inputs[0])
    ((boxes, scores, classes, labels),) = ask(detector, np.zeros((64, 64, 3), np.uint8))
    assert boxes.tolist() == [[4, 4, 20, 20]]
    assert (np.round(scores, 3).astype(float).round(3).tolist(), classes.tolist(), labels.tolist()) == (
        [0.9],
        [0],
        ["0"],
    )


def test_ssd() -> None:
    outputs = [
        np.float32([[[0, 0.5, 0.5, 1], [0, 0, 1, 1], [0, 0, 1, 1]]]),
        np.float32([[2, 1, 1]]),
        np.float32([[0.75, 0.5, 0.9]]),
        np.float32([2]),
    ]
    # Converters order them as they like, and some leave out how many are valid.
    for order in ([0, 1, 2, 3], [2, 0, 3, 1], [0, 1, 2]):
        detector = stub([outputs[i] for i in order], Port("x", "UINT8", ("n", 32, 32, 3)))
        ((boxes, scores, classes, _),) = ask(detector, np.zeros((100, 200, 3), np.uint8))
        if len(order) == 3:
            assert scores.tolist() == [np.float32(0.9), 0.75, 0.5]
        else:
            assert boxes.tolist() == [[100, 0, 200, 50], [0, 0, 200, 100]]
            assert (scores.tolist(), classes.tolist()) == ([0.75, 0.5], [2, 1])
        models._declared.clear()


@pytest.mark.parametrize(
    ("classes", "scores", "called"),
    [
        ([0, 0], [0.75, 0.5], "abcd"),  # classes like scores
        ([0, 2], [0.75, 0.5], "abcd"),
        ([3, 2], [0, 0], "abcd"),  # no score is a fraction
        ([1, 1], [0, 0], ("boxes", "detection_scores", "classes", "n")),  # only a name tells
        ([0, 0], [1, 1], ("boxes", "detection_scores", "classes", "n")),
    ],
)
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [0, 2, 1, 3]])
def test_ssd_tells_scores_from_classes(classes: Any, scores: Any, called: Any, order: list[int]) -> None:
    outputs = [np.zeros((1, 2, 4), np.float32), np.float32([scores]), np.float32([classes]), np.float32([2])]
    detector = stub([outputs[i] for i in order], Port("x", "UINT8", ("n", 32, 32, 3)), [called[i] for i in order])
    ((_, found, kinds, _),) = ask(detector, np.zeros((32, 32, 3), np.uint8))
    expected = [(score, kind) for score, kind in zip(scores, classes, strict=True) if score]
    assert list(zip(found.tolist(), kinds.tolist(), strict=True)) == expected


def test_boxes_of_one_class_are_distinct() -> None:
    cells = np.zeros((1, 6, 10), np.float32)  # centre, sides, two classes
    cells[0, :4, :4] = np.float32([[20, 20, 10, 10], [21, 20, 10, 10], [20, 20, 10, 10], [50, 50, 4, 4]]).T
    cells[0, 4:, :4] = np.float32([[0.9, 0], [0.8, 0], [0, 0.7], [0.2, 0.1]]).T
    detector = stub([cells], task="detect", names="{0: 'cat', 1: 'dog'}")
    ((boxes, _, _, labels),) = ask(detector, np.zeros((64, 64, 3), np.uint8))
    assert boxes.tolist() == [[15, 15, 25, 25]] * 2
    assert labels.tolist() == ["cat", "dog"]


@pytest.mark.parametrize("many", [5, 6])  # [6, 6] could be boxes of a network end to end
def test_more_classes_than_cells(many: int) -> None:
    cells = np.zeros((1, 6, many), np.float32)
    cells[0, :, 3] = [20, 20, 10, 10, 0, 0.9]
    detector = stub([cells], task="detect", names="['cat', 'dog']")
    ((boxes, _, _, labels),) = ask(detector, np.zeros((64, 64, 3), np.uint8))
    assert (boxes.tolist(), labels.tolist()) == ([[15, 15, 25, 25]], ["dog"])


@pytest.mark.parametrize(
    ("sizes", "metadata"),
    [
        ((300, 7), {"names": "['a', 'b', 'c']"}),  # RT-DETR: boxes from 0 to 1, and the scores of the classes
        ((300, 6), {"names": "['a', 'b', 'c']", "head": "RTDETRDecoder"}),
        ((300, 6), {"names": "['a', 'b']", "description": "Ultralytics rtdetr-l model"}),
        ((300, 5, 2), {}),
    ],
)
def test_outputs_in_another_form_are_served_raw(sizes: Any, metadata: dict[str, str]) -> None:
    ports = [Port("y", "FP32", ("n", *sizes))]
    network = Network("test", "cpu", [PICTURE], ports, lambda arrays: arrays, {"task": "detect"} | metadata)
    assert form(network, ROWS, Path("net.onnx")) is None


@pytest.mark.parametrize("sizes", [None, (), ("n",), ("n", 10, 1, 1)])
def test_a_classifier_has_a_score_for_each_class(sizes: Any) -> None:
    network = Network("test", "cpu", [PICTURE], [Port("y", "FP32", sizes)], lambda arrays: arrays)
    with pytest.raises(Unusable, match="no known form of classify"):
        form(network, ROWS, Path("net.onnx"), "classify")


def test_a_picture_goes_to_a_network_that_takes_four_only_if_they_are_independent() -> None:
    def run(arrays: Sequence[Any], apart: bool) -> list[Any]:
        assert len(arrays[0]) == 4
        scores = arrays[0].mean(axis=(2, 3))
        return [scores if apart else scores - scores.mean(axis=0) + np.float32([[0], [1], [2], [3]])]

    for apart, way in ((True, Way.PADDED), (False, Way.ONE)):
        network = Network(
            "test",
            "cpu",
            [Port("x", "FP32", (4, 3, 8, 8))],
            [Port("y", "FP32", (4, 3))],
            lambda arrays, apart=apart: run(arrays, apart),
            {"task": "classify"},
        )
        verdict = prove(network)
        assert verdict.way is way
        found = form(network, verdict, Path("net.onnx"))
        assert (found is not None) is apart
        if found is not None:
            picture = np.full((1, 9, 9, 3), 255, np.uint8)
            assert np.allclose(seeing(network, verdict, found, name="m").run([picture], Batch(1))[0], 1)


def test_a_task_without_a_known_form(tmp_path: Path) -> None:
    network = Network("test", "cpu", [PICTURE], [Port("y", "FP32", ("n", 7))], lambda arrays: arrays)
    with pytest.raises(Unusable, match=r"no known form of detect: .* images FP32 \[n, 3, 64, 64\]; y FP32"):
        form(network, ROWS, tmp_path / "a.onnx", "detect")
    for task in ("segment", "pose", "obb"):
        other = Network("test", "cpu", [PICTURE], [Port("y", "FP32", ("n", 7))], lambda a: a, {"task": task})
        assert form(other, ROWS, tmp_path / "a.onnx") is None


@pytest.mark.parametrize("names", ["", "no python", "{'a': 1}", "[1, 2]", "{0: 'x', 10000000000: 'y'}"])
def test_names_that_a_file_may_have(names: str) -> None:
    detector = stub([np.zeros((1, 300, 6), np.float32)], task="detect", names=names)
    ((boxes, *_),) = ask(detector, np.zeros((64, 64, 3), np.uint8))
    assert boxes.shape == (0, 4)


def test_an_unknown_task_is_served_raw(dots: Path, caplog: pytest.LogCaptureFixture, capsys: Any) -> None:
    file = onnx.load(dots)
    known = "detect, segment, pose, obb, classify are known"
    for metadata, why in (
        ({"task": "semantic"}, f"its task is semantic, and {known}"),
        ({"task": "detect", "head": "RTDETRDecoder"}, "its task is detect, and not in a form that is known"),
        ({"task": "pose", "kpt_shape": "[17, 3]"}, "its task is pose, and not in a form that is known"),
    ):
        helper.set_model_props(file, metadata)
        onnx.save(file, dots)
        with caplog.at_level(logging.INFO):
            assert command.main(["check", str(dots)]) == 0
        assert "model dots/1" in capsys.readouterr().out
        assert f"{why}: the network is served as it is" in caplog.text
        models._declared.clear()

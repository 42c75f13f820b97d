"""Networks with the outputs and the metadata that Ultralytics exports: what they answer.

Each is an ONNX file whose answer hardly depends on the picture: its objects are constants, and the
mean of the picture moves a cell that holds none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from shiva_container import Batch, Image, models
from shiva_container.files import Network, Port, Unusable, read
from shiva_container.heads import head
from shiva_container.masks import _text, outlined
from shiva_container.proof import Way, prove
from shiva_container.tasks import form, seeing

SIDE = 64
CELLS = (SIDE // 8) ** 2 + (SIDE // 16) ** 2 + (SIDE // 32) ** 2
NAMES = "{0: 'ship', 1: 'plane'}"


@pytest.fixture(autouse=True)
def no_models_left_over() -> Iterator[None]:
    yield
    models._declared.clear()


def export(path: Path, *outputs: Any, names: str = NAMES, **metadata: Any) -> Path:
    """Write a network that answers these rows, as Ultralytics' exporter names and describes it."""
    nodes = [helper.make_node("ReduceMean", ["images"], ["whole"], axes=[1, 2, 3], keepdims=1)]
    weights, infos = [], []
    for at, row in enumerate(outputs):
        moved = np.zeros_like(row)
        moved.reshape(-1)[-1] = 1e-3  # the last number is nothing that is read
        shape = np.array([-1, *[1] * row.ndim], np.int64)
        for name, value in (("base", row[None]), ("moved", moved[None]), ("shape", shape)):
            weights.append(numpy_helper.from_array(value, f"{name}{at}"))
        nodes += [
            helper.make_node("Reshape", ["whole", f"shape{at}"], [f"mean{at}"]),
            helper.make_node("Mul", [f"mean{at}", f"moved{at}"], [f"part{at}"]),
            helper.make_node("Add", [f"base{at}", f"part{at}"], [f"output{at}"]),
        ]
        infos.append(helper.make_tensor_value_info(f"output{at}", TensorProto.FLOAT, ["batch", *row.shape]))
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])
    graph = helper.make_graph(nodes, "yolo", [images], infos, weights)
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    said = {"author": "Ultralytics", "stride": 32, "batch": 1, "imgsz": [SIDE, SIDE], "names": names} | metadata
    helper.set_model_props(file, {key: str(value) for key, value in said.items()})
    onnx.save(file, path)
    return path


def answers(path: Path, *sizes: tuple[int, int], task: str = "") -> list[dict[str, Any]]:
    """What the model answers for pictures of these heights and widths, asked in one batch."""
    network = read(path)
    verdict = prove(network)
    assert verdict.way is Way.ROWS, verdict
    found = form(network, verdict, path, task)
    assert found is not None
    model = seeing(network, verdict, found, name="m")
    models._declared.clear()
    files = [cv2.imencode(".png", np.zeros((*size, 3), np.uint8))[1].tobytes() for size in sizes]
    *parts, counts = model.run([np.array([*files, None], object)[:-1]], Batch(len(files)))
    ends = np.cumsum(counts)[:-1]
    split = [np.split(part, ends) for part in parts]
    names = [tensor.name for tensor in model.outputs]
    return [dict(zip(names, row, strict=False)) for row in zip(*split, strict=True)]


def cells(classes: int, more: int, *objects: tuple[tuple[float, ...], int, float, tuple[float, ...]]) -> Any:
    """[4 + classes + more, cells] with objects of centre and sides, class, score, and more."""
    row = np.zeros((4 + classes + more, CELLS), np.float32)
    for at, (box, kind, score, rest) in enumerate(objects, 5):
        row[:4, at], row[4 + kind, at], row[4 + classes :, at] = box, score, rest
    return row


def picked(more: int, *objects: tuple[tuple[float, ...], int, float, tuple[float, ...]]) -> Any:
    """[300, 6 + more]: the same end to end, where a box is what the task says."""
    rows = np.zeros((300, 6 + more), np.float32)
    for at, (box, kind, score, rest) in enumerate(objects):
        rows[at] = (*box, score, kind, *rest)
    return rows


def decoded(text: str) -> Any:
    """The pixels of a mask, as pycocotools decodes it."""
    mask = json.loads(text)
    height, width = mask["size"]
    counts: list[int] = []
    digits = iter(mask["counts"].encode())
    for digit in digits:
        value, place = 0, 0
        while True:
            value |= (digit - 48 & 31) << place
            place += 5
            if not digit - 48 & 32:
                break
            digit = next(digits)
        if digit - 48 & 16:
            value -= 1 << place
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
    flat = np.repeat(np.arange(len(counts)) % 2, counts)
    return flat.reshape(width, height).T.astype(bool)


def test_points_of_objects(tmp_path: Path) -> None:
    points = (10.0, 20.0, 0.9, 54.0, 60.0, 0.1)
    said = {"task": "pose", "kpt_shape": [2, 3], "names": "{0: 'person'}"}
    one = export(tmp_path / "a.onnx", cells(1, 6, ((32, 40, 48, 32), 0, 0.8, points)), **said)
    two = export(tmp_path / "b.onnx", picked(6, ((8, 24, 56, 56), 0, 0.8, points)), end2end=True, **said)
    flat = (10.0, 20.0, 54.0, 60.0)
    three = export(tmp_path / "c.onnx", cells(1, 4, ((32, 40, 48, 32), 0, 0.8, flat)), **said | {"kpt_shape": (2, 2)})
    for path, numbers in ((one, 3), (two, 3), (three, 2)):
        square, wide = answers(path, (128, 128), (64, 128))
        seen = [[0.9], [0.1]] if numbers == 3 else [[], []]
        for found, expected in (
            (square, [[20, 40], [108, 120]]),
            (wide, [[20, 8], [108, 64]]),  # the bars above and below are 16 of 64 pixels, and 88 is beyond the picture
        ):
            assert found["keypoints"].shape == (1, 2, numbers)
            assert np.allclose(found["keypoints"][0], [a + b for a, b in zip(expected, seen, strict=True)])
            assert found["labels"].tolist() == ["person"]
        assert square["boxes"].tolist() == [[16, 48, 112, 112]]


def test_turned_boxes(tmp_path: Path) -> None:
    angle = np.pi / 6
    objects = [
        ((32, 32, 40, 8), 0, 0.9, (angle,)),
        ((32, 32, 40, 8), 0, 0.8, (angle + 0.02,)),  # the same ship
        ((32, 32, 40, 8), 0, 0.7, (angle + np.pi / 2,)),  # another one, across it
        ((33, 32, 40, 8), 1, 0.6, (angle,)),  # a plane in its place
    ]
    one = export(tmp_path / "a.onnx", cells(2, 1, *objects), task="obb")
    two = export(tmp_path / "b.onnx", picked(1, *objects[:1], *objects[2:]), task="obb", end2end=True)
    along, across = np.array([np.cos(angle), np.sin(angle)]) * 20, np.array([-np.sin(angle), np.cos(angle)]) * 4
    corners = 32 + np.array([along + across, along - across, -along - across, across - along])
    for path in (one, two):
        square, tall = answers(path, (64, 64), (128, 64))
        assert square["labels"].tolist() == ["ship", "ship", "plane"]
        assert np.allclose(square["corners"][0], corners, atol=1e-4)
        assert np.allclose(square["boxes"][0], [*corners.min(axis=0), *corners.max(axis=0)], atol=1e-4)
        assert np.allclose(tall["corners"][0], (corners - (16, 0)) * 2, atol=1e-4)
        assert np.allclose(tall["boxes"][0][[0, 2]], [0, 64])  # corners may be beyond the picture, boxes are not


def test_a_turned_box_beside_another_is_its_own(tmp_path: Path) -> None:
    """Upright boxes around ships in a row overlap; the ships do not."""
    row = [((20.0 + 8 * n, 32.0, 40.0, 6.0), 0, 0.9 - n / 10, (np.pi / 4,)) for n in range(4)]
    (found,) = answers(export(tmp_path / "a.onnx", cells(2, 1, *row), task="obb"), (64, 64))
    assert len(found["scores"]) == 4


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("end2end", [False, True])
@pytest.mark.parametrize(
    ("task", "more", "kpt_shape"), [("detect", (), ""), ("obb", (0.5,), ""), ("pose", (9.0, 8.0, 0.7) * 2, "[2, 3]")]
)
def test_litert_files_say_parts_of_the_sides(
    layout: str, end2end: bool, task: str, more: tuple[float, ...], kpt_shape: str
) -> None:
    """As Ultralytics' LiteRTBackend reads them: not where a file in NCHW picks objects itself."""
    sizes = ("n", 3, 32, 64) if layout == "nchw" else ("n", 32, 64, 3)
    metadata = {"task": task, "names": NAMES, "end2end": str(end2end), "kpt_shape": kpt_shape}
    one = (20, 10, 30, 12), 1, 0.9, more
    row = picked(len(more), one) if end2end else cells(2, len(more), one)
    sides = np.ones(row.shape[-1 if end2end else 0], np.float32)
    sides[:4] = 64, 32, 64, 32
    if task == "pose":
        sides[-6::3], sides[-5::3] = 64, 32
    if end2end and layout == "nchw":
        sides[:] = 1
    found = []
    for platform, said in ("onnxruntime", row), ("tflite", row / (sides if end2end else sides[:, None])):
        network = Network(
            platform, "cpu", [Port("images", "FP32", sizes)], [Port("out", "FP32", ("n", *row.shape))], list, metadata
        )
        made = head(network, task, 32, 64, 2)
        assert made is not None
        found.append(made.read([said[None].astype(np.float32)])[0])
    for a, b in zip(*(vars(one).values() for one in found), strict=True):
        assert len(a) > 0
        assert np.allclose(a, b, atol=1e-3)


@pytest.mark.parametrize("end2end", [False, True])
def test_masks(tmp_path: Path, end2end: bool) -> None:
    grids = np.zeros((4, SIDE // 4, SIDE // 4), np.float32)
    grids[0] = np.where(np.arange(16) < 8, 1, -1)  # the left half
    grids[1] = grids[0].T  # the upper half
    objects = [((8, 8, 56, 56), 0, 0.9, (1.0, 0.0, 0, 0)), ((8, 8, 40, 56), 1, 0.8, (0.0, 1.0, 0, 0))]
    if end2end:
        row = picked(4, *objects)
    else:
        row = cells(2, 4, *[(((a + c) / 2, (b + d) / 2, c - a, d - b), *rest) for (a, b, c, d), *rest in objects])
    path = export(tmp_path / "a.onnx", row, grids, task="segment", end2end=end2end)
    square, wide, odd = answers(path, (64, 64), (160, 320), (37, 23))
    for found, (height, width), scale, bar in ((square, (64, 64), 1, 0), (wide, (160, 320), 5, 16)):
        first, second = map(decoded, found["masks"])
        y, x = np.mgrid[:height, :width] / scale + np.array([bar, 0])[:, None, None] + 0.5 / scale
        assert (first == ((x > 8) & (x < 32) & (y > 8) & (y < 56))).all()
        assert (second == ((x > 8) & (x < 40) & (y > 8) & (y < 32))).all()
        assert found["labels"].tolist() == ["ship", "plane"]
    assert decoded(odd["masks"][0]).shape == (37, 23)


@pytest.mark.parametrize("size", [(64, 64), (48, 200), (33, 7), (5, 9), (300, 150)])
def test_masks_have_the_pixels_where_the_grid_between_its_points_is_positive(size: tuple[int, int]) -> None:
    random = np.random.default_rng(7)
    grids = random.normal(size=(4, 16, 16)).astype(np.float32)
    grids[2] = np.where(grids[2] > 0, np.inf, np.nan)  # whatever overflows in a network
    boxes = np.float32([[-9, -9, 99, 99], [10.2, 20.7, 50.1, 44.4], [0, 0, 64, 64], [np.nan] * 4])
    _, fit = Image("image", 64, 64, resize="letterbox").fit(np.zeros((*size, 3), np.uint8))
    for text, grid, box in zip(outlined(grids, boxes, (64, 64), fit), grids, fit.boxes(boxes), strict=True):
        mask = decoded(text)
        y, x = np.mgrid[: size[0], : size[1]]
        u = ((y + 0.5) * fit.scale_y + fit.top) / 4 - 0.5
        v = ((x + 0.5) * fit.scale_x + fit.left) / 4 - 0.5
        within = (x + 0.5 >= box[0]) & (x + 0.5 < box[2]) & (y + 0.5 >= box[1]) & (y + 0.5 < box[3])
        if np.isfinite(grid).all():
            between = cv2.remap(
                grid.astype(np.float64), np.float32(v), np.float32(u), cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
            )
            # OpenCV rounds places to 1/32 of a point.
            assert (mask == (within & (between > 0)))[np.abs(between) > 0.15].all()
        assert mask.shape == size
        assert not mask[~within].any()


@pytest.mark.parametrize("start", [1, 2, 3])
def test_masks_in_a_region_that_is_turned(start: int) -> None:
    random = np.random.default_rng(start)
    grids = random.normal(size=(3, 16, 16)).astype(np.float32)
    boxes = np.float32([[-9, -9, 99, 99], [10.2, 20.7, 50.1, 44.4], [np.nan] * 4])
    picture = random.integers(0, 256, (70, 90, 3), np.uint8)
    image = Image("image", 64, 64, resize="letterbox", regions=True)
    corners = np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
    _, turned = image.fit(picture, np.roll(corners, -start, axis=0))
    assert turned.back
    _, plain = image.fit(np.rot90(picture, start))
    masks = outlined(grids, boxes, (64, 64), turned)
    for text, same in zip(masks, outlined(grids, boxes, (64, 64), plain), strict=True):
        assert decoded(text).shape == (70, 90)
        assert (decoded(text) == np.rot90(decoded(same), -start)).all()
    assert decoded(masks[0]).any()
    # In a part of the picture, what is outside of the part is in no mask.
    part = np.roll(np.array([[0.5, 0.5], [1, 0.5], [1, 1], [0.5, 1]]), -start, axis=0)
    y, x = np.mgrid[:70, :90]
    for corners in (part, np.roll(part, start, axis=0)):
        _, quarter = Image("image", 64, 64, resize="stretch", regions=True).fit(picture, corners)
        (whole,) = outlined(np.ones((1, 16, 16), np.float32), boxes[:1], (64, 64), quarter)
        assert (decoded(whole) == ((y >= 35) & (x >= 45))).all()


def test_a_mask_over_the_whole_picture_is_one_run(tmp_path: Path) -> None:
    grids = np.ones((4, 16, 16), np.float32)
    row = cells(2, 4, ((32, 32, 64, 64), 0, 0.9, (1, 0, 0, 0)), ((5, 5, 0, 0), 1, 0.8, (1, 0, 0, 0)))
    (found,) = answers(export(tmp_path / "a.onnx", row, grids, task="segment"), (32, 32))
    assert [json.loads(text) for text in found["masks"]] == [
        {"size": [32, 32], "counts": "0PP1"},
        {"size": [32, 32], "counts": "PP1"},
    ]


def test_counts_are_compressed_as_by_coco() -> None:
    # pycocotools.mask.encode of the same runs
    counts = np.array([3, 100, 5000, 2, 1, 70, 123456, 6])
    assert _text(counts) == "3T3Xl4nLiSKT2oah3PN"


def test_objects_picked_by_suppression_in_the_file(tmp_path: Path) -> None:
    rows = picked(0, ((8, 8, 56, 56), 1, 0.9, ()))
    path = export(tmp_path / "a.onnx", rows, task="detect", args="{'dynamic': True, 'nms': True}")
    (found,) = answers(path, (128, 128))
    assert (found["boxes"].tolist(), found["labels"].tolist()) == ([[16, 16, 112, 112]], ["plane"])


@pytest.mark.parametrize(
    ("task", "row"),
    [
        ("detect", cells(3, 0, ((32, 32, 48, 48), 1, 0.9, ()))),
        ("detect", picked(0, ((8, 8, 56, 56), 1, 0.9, ()))),
        ("obb", cells(3, 1, ((32, 32, 48, 48), 1, 0.9, (0,)))),
        ("pose", cells(1, 6, ((32, 32, 48, 48), 0, 0.9, (1, 2, 3, 4, 5, 6)))),
    ],
)
def test_files_that_lost_their_metadata(tmp_path: Path, task: str, row: Any) -> None:
    path = export(tmp_path / "a.onnx", row)
    file = onnx.load(path)
    del file.metadata_props[:]
    onnx.save(file, path)
    (found,) = answers(path, (64, 64), task=task)
    assert np.allclose(found["boxes"], [[8, 8, 56, 56]])
    assert found["labels"].tolist() == ["0" if task == "pose" else "1"]


@pytest.mark.parametrize("task", ["detect", "pose", "obb", "segment"])
def test_outputs_of_another_task(tmp_path: Path, task: str) -> None:
    path = export(tmp_path / "a.onnx", np.zeros((11, CELLS), np.float32), task=task, kpt_shape=[17, 3])
    network = read(path)
    assert form(network, prove(network), path) is None
    with pytest.raises(Unusable, match=f"no known form of {task}"):
        form(network, prove(network), path, task)

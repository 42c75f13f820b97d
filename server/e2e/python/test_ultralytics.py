"""TritonRemoteModel of the package ultralytics, as its users call it."""

from __future__ import annotations

import sys
from ast import literal_eval
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import ultralytics_models
from conftest import HERE, Server, Start
from tritonclient.utils import InferenceServerException

EXAMPLE = HERE.parents[2] / "examples" / "ultralytics"
sys.path.insert(0, str(EXAMPLE))

import detect
import dots


@pytest.fixture(scope="module", autouse=True)
def files(server: Server, start: Start, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The networks that are served, by name."""
    folder = tmp_path_factory.mktemp("networks")
    made = {name: folder / f"{name}.onnx" for name in ("dots", "still_dots")}
    for name, path in made.items():
        path.write_bytes(dots.network(static=name == "still_dots").SerializeToString())
        start("-m", "shiva_container", "serve", str(path), "--as", "raw")
    start("ultralytics_models.py")
    server.wait_ready("dots/1", "still_dots/1", "ultra_half/1", "ultra_rows/1", "ultra_many/1")
    return made


@pytest.fixture(params=["http", "grpc"])
def remote(server: Server, request: pytest.FixtureRequest) -> Any:
    """Makes a TritonRemoteModel of a model's name."""
    address = {"http": server.rest, "grpc": server.grpc}[request.param]
    return lambda name: detect.remote(f"{request.param}://{address}/{name}")


def pictures(n: int) -> np.ndarray:
    scenes = np.stack([detect.scene(dots.SIDE, seed) for seed in range(n)])
    return scenes.transpose(0, 3, 1, 2).astype(np.float32) / 255


@pytest.mark.parametrize(("name", "many"), [("dots", 3), ("still_dots", 1)])
def test_a_network_that_was_exported(remote: Any, files: dict[str, Path], name: str, many: int) -> None:
    model, local = remote(name), ort.InferenceSession(files[name])
    assert model.metadata == local.get_modelmeta().custom_metadata_map
    assert literal_eval(model.metadata["names"]) == dots.NAMES
    (output,) = model(pictures(many))
    (wanted,) = local.run(None, {"images": pictures(many)})
    assert output.dtype == np.float32
    assert output.shape == wanted.shape == (many, 7, 3 * dots.WINDOWS)
    assert np.allclose(output, wanted, rtol=1e-3, atol=1e-3)
    for one in output:
        assert [kind for kind, _, _ in detect.found(one)].count(0) == 3  # of nine dots seven are coloured


def test_another_size_is_refused(remote: Any) -> None:
    with pytest.raises(InferenceServerException, match=r"got float32 \[1, 3, 64, 64\]"):
        remote("dots")(np.zeros((1, 3, 64, 64), np.float32))
    with pytest.raises(InferenceServerException, match="nobody"):
        remote("nobody")


def test_a_network_of_one_picture_takes_several_in_turn(remote: Any) -> None:
    (still,), (dynamic,) = remote("still_dots")(pictures(2)), remote("dots")(pictures(2))
    assert still.shape == dynamic.shape
    assert np.allclose(still, dynamic)


def test_outputs_are_in_the_order_of_their_names(remote: Any) -> None:
    model = remote("ultra_half")
    assert (model.output_names, model.metadata) == (["output0", "output1"], None)
    first, second = model(np.full((2, 3, 4, 4), 0.5, np.float32))
    assert (first.dtype, first.shape, second.shape) == (np.float32, (2, 1), (2, 1))
    assert (first.tolist(), second.tolist()) == ([[24.0]] * 2, [[48.0]] * 2)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_outputs_without_a_batch(remote: Any, rows: int) -> None:
    model = remote("ultra_rows")
    found, count = model(np.full((1, 3, 4, 4), rows, np.uint8))
    assert (found.dtype, found.shape, count.shape) == (np.uint8, (rows, 6), ())
    assert count == rows
    assert (found == np.arange(6)).all()


def test_metadata_of_a_thousand_classes(remote: Any) -> None:
    assert remote("ultra_many").metadata == ultralytics_models.MANY

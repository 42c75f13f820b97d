"""A second model that looks at the boxes which a first one has found, through every door."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import PIL.Image
import pytest
import tritonclient.grpc
import tritonclient.http
from conftest import Server, Start
from shiva_client import Client, RemoteError

HEIGHT, WIDTH = 480, 640
COLOURS = {"red": (250, 20, 30), "green": (10, 240, 20), "blue": (30, 10, 230)}
SQUARES = {"red": (40, 60, 120, 140), "green": (260, 300, 360, 420), "blue": (500, 30, 620, 190)}


@pytest.fixture(scope="module", autouse=True)
def sdk(server: Server, start: Start) -> None:
    start("region_models.py")
    server.wait_ready("squares/1", "colour/1", "place/1", "whole/1")


def picture() -> Any:
    pixels = np.full((HEIGHT, WIDTH, 3), (180, 170, 90), np.uint8)
    for name, (x0, y0, x1, y1) in SQUARES.items():
        pixels[y0:y1, x0:x1] = COLOURS[name]
    return pixels


def saved(kind: str = "JPEG", orientation: int = 1) -> Any:
    """The picture as a file that shows it upright, whatever its orientation is."""
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    turns = {1: lambda a: a, 6: lambda a: np.rot90(a, 1), 3: lambda a: np.rot90(a, 2), 2: lambda a: a[:, ::-1]}
    out = io.BytesIO()
    stored = PIL.Image.fromarray(np.ascontiguousarray(turns[orientation](picture())))
    stored.save(out, kind, **({"quality": 95, "exif": exif} if kind == "JPEG" else {}))
    return np.frombuffer(out.getvalue(), np.uint8)


FORMS = {
    "a JPEG": saved(),
    "a turned JPEG": saved(orientation=6),
    "a JPEG upside down": saved(orientation=3),
    "a mirrored JPEG": saved(orientation=2),
    "a PNG": saved("PNG"),
    "pixels": picture(),
}


def found(client: Client, image: Any) -> Any:
    """What the first model finds, in parts of the picture."""
    return client.infer("squares", {"image": image})["boxes"] / np.float32([WIDTH, HEIGHT, WIDTH, HEIGHT])


@pytest.mark.parametrize("form", FORMS)
def test_a_second_model_sees_what_a_first_one_has_found(server: Server, form: str) -> None:
    with Client(server.tcp) as client:
        boxes = found(client, FORMS[form])
        assert boxes.shape == (3, 4)
        means = client.infer("colour", {"image": FORMS[form], "image_regions": boxes})["mean"]
        assert np.abs(means - list(COLOURS.values())).max() < 6
        places = client.infer("place", {"image": FORMS[form], "image_regions": boxes})
        assert np.abs(places["box"] - list(SQUARES.values())).max() <= 2
        corners = boxes[:, [[0, 1], [2, 1], [2, 3], [0, 3]]]
        again = client.infer("place", {"image": FORMS[form], "image_regions": np.roll(corners, 2, axis=1)})
        assert np.array_equal(again["box"], places["box"])


@pytest.mark.parametrize("door", [tritonclient.http, tritonclient.grpc])
@pytest.mark.parametrize("form", ["a turned JPEG", "pixels"])
def test_over_the_predict_protocol(server: Server, door: Any, form: str) -> None:
    image = FORMS[form]
    with Client(server.tcp) as first:
        boxes = found(first, image)
    with door.InferenceServerClient(server.rest if door is tritonclient.http else server.grpc) as client:
        metadata = client.get_model_metadata("colour", **({} if door is tritonclient.http else {"as_json": True}))
        told = {one["name"]: (one["datatype"], [int(n) for n in one["shape"]]) for one in metadata["inputs"]}
        assert told["image_regions"] == ("FP32", [-1, 4])
        inputs = [
            door.InferInput("image", list(image.shape), "UINT8"),
            door.InferInput("image_regions", list(boxes.shape), "FP32"),
        ]
        for one, array in zip(inputs, (image, boxes), strict=True):
            one.set_data_from_numpy(array)
        means = client.infer("colour", inputs).as_numpy("mean")
        assert np.abs(means - list(COLOURS.values())).max() < 6
        if door is tritonclient.http:  # as JSON
            inputs[1].set_data_from_numpy(boxes, binary_data=False)
            assert np.array_equal(client.infer("colour", inputs).as_numpy("mean"), means)


def test_many_regions_of_a_picture_are_many_rows(server: Server) -> None:
    """More than one batch has: the picture is decoded once in the container, and each row is right."""
    random = np.random.default_rng(1)
    x, y = random.integers(0, WIDTH - 40, 500), random.integers(0, HEIGHT - 40, 500)
    boxes = np.float32(np.stack([x, y, x + 40, y + 40], axis=1)) / np.float32([WIDTH, HEIGHT, WIDTH, HEIGHT])
    with Client(server.tcp) as client:
        for form in ("a PNG", "pixels"):
            answer = client.infer("place", {"image": FORMS[form], "image_regions": boxes})
            assert np.array_equal(answer["first"], picture()[y, x])
            assert np.allclose(answer["box"], np.stack([x, y, x + 40, y + 40], axis=1), atol=1e-3)


def test_no_regions_are_no_rows(server: Server) -> None:
    with Client(server.tcp) as client:
        answer = client.infer("colour", {"image": FORMS["a PNG"], "image_regions": np.zeros((0, 4), np.float32)})
        assert answer["mean"].shape == (0, 3)


def test_whole_pictures_go_on(server: Server) -> None:
    with Client(server.tcp) as client:
        answer = client.infer("place", {"image": FORMS["a turned JPEG"]})
        assert np.array_equal(answer["box"].ravel(), [0, 0, WIDTH, HEIGHT])


@pytest.mark.parametrize(
    ("name", "regions", "text"),
    [
        ("colour", [[0.1, 0.1, 0.1, 0.5]], "0"),
        ("colour", [[0.1, 0.1, 0.4, 0.5], [0.1, np.nan, 0.4, 0.5]], "1"),
        ("colour", [[0.6, 0.1, 0.4, 0.5]], "0"),
        ("colour", [[0.1, 0.2, 0.3]], "image_regions"),
        ("whole", [[0.1, 0.1, 0.4, 0.5]], "image_regions"),
    ],
)
def test_what_cannot_be_cut_is_refused(server: Server, name: str, regions: Any, text: str) -> None:
    with Client(server.tcp) as client:
        with pytest.raises(RemoteError, match=text) as raised:
            client.infer(name, {"image": FORMS["a PNG"], "image_regions": np.float32(regions)})
        assert raised.value.type == "InvalidInput"
        good = {"image": FORMS["a PNG"], "image_regions": found(client, FORMS["a PNG"])}
        assert len(client.infer("colour", good)["mean"]) == 3


def test_a_picture_that_is_damaged_fails_its_request_alone(server: Server) -> None:
    with Client(server.tcp) as client:
        with pytest.raises(RemoteError, match="JPEG: it ends after") as raised:
            client.infer("colour", {"image": FORMS["a JPEG"][:-300], "image_regions": np.float32([[0, 0, 1, 1]])})
        assert raised.value.type == "InvalidInput"

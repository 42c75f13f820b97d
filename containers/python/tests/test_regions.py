"""Regions of pictures: what is cut, how it comes back, and what is refused."""

from __future__ import annotations

import io
import json
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
from fake_server import Fake
from shiva_container import (
    Batch,
    Container,
    DeclarationError,
    Fit,
    Image,
    PictureError,
    Request,
    Tensor,
    images,
    kept,
    model,
    pictures,
)
from shiva_container.arena import Arena
from shiva_container.batches import Batches
from shiva_container.images import Regions
from shiva_container.kept import KEPT, Kept
from shiva_container.regions import Picture
from shiva_container.session import Delivery
from test_arena import Segment
from test_pictures import file, files

MEAN = Tensor("mean", "FP32", [-1, 3])


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    KEPT.free(float("inf"))


def ramp(height: int, width: int) -> Any:
    """A picture whose colours tell the place of each pixel: red grows to the right, green to the
    bottom, blue along the diagonal. Between pixels they are linear."""
    y, x = np.mgrid[0:height, 0:width] + 0.5
    return np.stack([x * 250 / width, y * 250 / height, (x / width + y / height) * 125], 2).round().astype(np.uint8)


def noise(height: int, width: int) -> Any:
    """A coloured picture of which no two parts are alike."""
    return np.random.default_rng(height * width).integers(0, 256, (height, width, 3), np.uint8)


def box(corners: Any) -> Any:
    """The four corners of x_min, y_min, x_max and y_max."""
    x0, y0, x1, y1 = corners
    return np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]])


def turned_box(x: float, y: float, width: float, height: float, degrees: float) -> Any:
    """The corners of a box in pixels, turned about its middle."""
    a = np.deg2rad(degrees)
    turn = np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]])
    half = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * (width / 2, height / 2)
    return half @ turn.T + (x, y)


WHOLE = Image("x", regions=True)


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_a_box_is_its_pixels_and_turned_as_its_corners_begin(decoder: str, layout: str) -> None:
    pixels = noise(120, 200)
    image = Image("x", regions=True, layout=layout)
    given = pixels if layout == "nhwc" else pixels.transpose(2, 0, 1)
    wanted = pixels[30:70, 20:140]
    for start in range(4):
        corners = np.float32(np.roll(box([20 / 200, 30 / 120, 140 / 200, 70 / 120]), -start, axis=0))
        for got, fit in (image.fit(given, corners), image.decode(file(PIL.Image.fromarray(pixels), "PNG"), corners)):
            cut = got if layout == "nhwc" else got.transpose(1, 2, 0)
            # The corner that is the first is the top left: the cut is turned left as often.
            assert np.array_equal(cut, np.rot90(wanted, start)), start
            height, width = cut.shape[:2]
            ends = fit.points([[0, 0], [width, 0], [width, height], [0, height]])
            assert np.allclose(ends, corners * (200, 120), atol=1e-3)
            assert np.allclose(fit.boxes([0, 0, width, height]), [20, 30, 140, 70], atol=1e-3)
            assert (fit.height, fit.width) == (120, 200)
    same, fit = image.fit(given, [20 / 200, 30 / 120, 140 / 200, 70 / 120])
    assert np.array_equal(same if layout == "nhwc" else same.transpose(1, 2, 0), wanted)
    assert fit == Fit(120, 200, 1, 1, -30, -20)


def test_corners_by_perspective_begin_anywhere(decoder: str) -> None:
    pixels = noise(90, 70)
    corners = np.array([[10, 12], [50, 20], [60, 70], [5, 80]]) / (70, 90)
    first, _ = WHOLE.fit(pixels, corners)
    assert first.shape == (68, 56, 3)  # the longer of two sides
    for start in range(1, 4):
        again, _ = WHOLE.fit(pixels, np.roll(corners, -start, axis=0))
        assert np.abs(again.astype(int) - np.rot90(first, start)).max() <= 16, start  # 1/32 of a pixel of noise
        assert np.abs(again.astype(int) - np.rot90(first, start)).mean() < 0.5, start


REGIONS = {
    "a box": box([20, 30, 140, 70]),
    "a box at the edge": box([100, 60, 200, 120]),
    "a narrow box": box([20.4, 10, 24.2, 110]),
    "a box that begins elsewhere": np.roll(box([20, 30, 140, 70]), 1, axis=0),
    "a turned box": turned_box(90, 60, 80, 30, 25),
    "one upside down": turned_box(90, 60, 80, 30, 190),
    "a perspective": np.array([[40, 20], [150, 40], [170, 100], [30, 90]], np.float64),
}
FORMS: dict[str, dict[str, Any]] = {
    "own size": {},
    "stretch": {"height": 40, "width": 64, "resize": "stretch"},
    "letterbox": {"height": 64, "width": 48, "resize": "letterbox"},
    "crop": {"height": 33, "width": 47, "resize": "crop"},
    "margin": {"margin": 0.25},
    "margin of a letterbox": {"height": 50, "width": 50, "resize": "letterbox", "margin": 0.1},
    "context": {"height": 64, "width": 64, "resize": "letterbox", "context": True},
    "context and margin": {"height": 96, "width": 48, "resize": "stretch", "context": True, "margin": 0.2},
}


def right(image: Image, pixels: Any, fit: Fit, height: int, width: int, far: float = 4) -> float:
    """The part of a cut's pixels that lies in the picture.

    Each must have the colour of the place to which its fit brings it; elsewhere it is filled.
    """
    y, x = np.mgrid[0 : pixels.shape[0], 0 : pixels.shape[1]] + 0.5
    places = fit.points(np.stack([x, y], axis=2), clip=False)
    u, v = places[..., 0] / width, places[..., 1] / height
    wanted = np.stack([u, v, (u + v) / 2], axis=2) * 250
    # At the edge of the picture, a pixel of the cut is mixed of what is inside and outside.
    apart = [np.linalg.norm(np.gradient(places, axis=axis), axis=2) for axis in (0, 1)]
    edge = 1 + 1.5 * np.maximum(*apart)
    a, b = edge / width, edge / height
    inside = (u > a) & (u < 1 - a) & (v > b) & (v < 1 - b)
    beyond = (u < -a) | (u > 1 + a) | (v < -b) | (v > 1 + b)
    filled = (pixels == image.fill).all(axis=2)
    seen = inside & ~filled
    assert seen.any()
    wrong = np.abs(pixels.astype(float) - wanted)[seen].max()
    assert wrong <= far, wrong
    assert filled[beyond].all()
    return float(seen.mean())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", REGIONS)
def test_every_pixel_comes_back_to_its_place(decoder: str, place: str, form: str) -> None:
    height, width = 120, 200
    image = Image("x", regions=True, fill=114, **FORMS[form])
    corners = REGIONS[place] / (width, height)
    pixels, fit = image.fit(ramp(height, width), corners)
    if image.height:
        assert pixels.shape == (image.height, image.width, 3)
    seen = right(image, pixels, fit, height, width)
    if form in ("own size", "stretch", "crop"):
        assert seen > 0.85
    back = fit.points(np.array([[0, 0], [pixels.shape[1], pixels.shape[0]]], np.float32))
    assert back.dtype == np.float32
    assert (back >= 0).all()
    assert (back <= (width, height)).all()
    if form == "own size" and "box" in place:
        ends = fit.points([[0, 0], [pixels.shape[1], 0], pixels.shape[1::-1], [0, pixels.shape[0]]], clip=False)
        assert np.abs(ends - REGIONS[place]).max() < 0.6  # boxes are cut in whole pixels


def test_what_margin_and_context_add() -> None:
    picture = ramp(100, 200)
    part = [0.4, 0.4, 0.6, 0.6]  # 40 x 20 pixels at 80, 40

    def seen(region: Any = part, **more: Any) -> list[float]:
        pixels, fit = Image("x", regions=True, **more).fit(picture, region)
        return fit.boxes(np.array([0, 0, pixels.shape[1], pixels.shape[0]], np.float64)).tolist()  # type: ignore[no-any-return]

    assert seen() == [80, 40, 120, 60]
    assert seen(margin=0.25) == [70, 35, 130, 65]
    assert seen([0, 0, 0.2, 0.2], margin=0.25) == [0, 0, 50, 25]  # it ends at the edge
    square = {"height": 64, "width": 64, "resize": "letterbox"}
    assert np.allclose(seen(context=True, **square), [80, 30, 120, 70], atol=0.1)
    assert np.allclose(seen(context=True, margin=0.25, **square), [70, 20, 130, 80], atol=0.1)
    # At the edge the object stays in the middle, and what is missing is filled.
    pixels, fit = Image("x", regions=True, context=True, fill=255, **square).fit(picture, [0, 0, 0.2, 0.2])
    assert (pixels[:14] == 255).all()
    assert not (pixels[17:] == 255).all(axis=2).any()
    assert np.allclose(fit.points([32, 32]), [20, 10], atol=0.1)
    turned = np.roll(box(part), -1, axis=0)  # a box on its side: the same proportions, turned
    wide = {"height": 32, "width": 64, "resize": "stretch", "context": True}
    assert np.allclose(seen(turned, **wide), [80, 10, 120, 90], atol=0.1)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(400, 640), (403, 645)])
def test_exif_is_first_and_jpegs_are_decoded_smaller(
    decoder: str, orientation: int, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = PIL.Image.fromarray(ramp(*size))
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    data = file(stored, quality=95, exif=exif)
    upright = PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(data)))
    width, height = upright.size
    steps: list[int] = []
    decode = images.decode
    monkeypatch.setattr(images, "decode", lambda file, channels, said=None, step=1: (
        steps.append(step), decode(file, channels, said, step))[1])
    wanted = np.asarray(upright.convert("RGB"))
    for region in ([0.25, 0.125, 0.75, 0.875], [0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0]):
        for side, step in ((400, 1), (100, None), (20, 8)):
            image = Image("x", side, side, resize="stretch", regions=True)
            pixels, fit = image.decode(data, region)
            x0, y0, x1, y1 = np.array(region) * (width, height, width, height)
            part = wanted[round(y0) : round(y1), round(x0) : round(x1)]
            ends = fit.boxes(np.array([0, 0, side, side], np.float64))
            assert np.abs(ends - [x0, y0, x1, y1]).max() <= steps[-1] / 2 + 0.01
            if step is not None:
                assert steps[-1] == step
            same = np.asarray(PIL.Image.fromarray(part).resize((side, side), PIL.Image.Resampling.BOX))
            # Within what half a pixel of the smaller picture is.
            far = 250 * steps[-1] / min(width, height) + 4
            assert np.abs(pixels.astype(int) - same).mean() <= far, (region, side)
            y, x = np.mgrid[1 : side - 1, 1 : side - 1] + 0.5
            places = fit.points(np.stack([x, y], axis=2)).round().astype(int)
            exact = wanted[places[..., 1].clip(0, height - 1), places[..., 0].clip(0, width - 1)]
            assert np.abs(pixels[1:-1, 1:-1].astype(int) - exact).mean() <= 3, (region, side, orientation)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_smaller_jpeg_is_where_the_whole_one_is(decoder: str, orientation: int) -> None:
    """Sides that are no multiples of 8: the last pixel of the smaller one lies partly beyond the
    picture, and may come first when it is upright."""
    upright = np.zeros((403, 645, 3), np.uint8) if orientation < 5 else np.zeros((645, 403, 3), np.uint8)
    height, width = upright.shape[:2]
    x, y = width // 2, height // 2
    upright[:, x:, 0] = upright[y:, :, 1] = 250
    back = {1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 8, 7: 7, 8: 6}[orientation]
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    data = file(PIL.Image.fromarray(np.ascontiguousarray(pictures._TURNS[back - 1](upright))), quality=95, exif=exif)
    near = np.array([x - 40, y - 40, x + 40, y + 40]) / (width, height, width, height)
    pixels, fit = Image("x", 10, 10, resize="stretch", regions=True).decode(data, near)
    x0, y0, x1, y1 = fit.boxes(np.array([0, 0, 10, 10], np.float64))
    wanted = [250 * (x1 - x) / (x1 - x0), 250 * (y1 - y) / (y1 - y0), 0]
    assert np.abs(pixels.mean(axis=(0, 1)) - wanted).max() < 4  # a pixel of the picture is 3


@pytest.mark.parametrize(
    ("size", "orientation", "form", "step"),
    [
        ((64, 1024), 6, {"height": 256, "width": 16, "resize": "stretch"}, 4),
        ((64, 512), 1, {"height": 64, "width": 64, "resize": "letterbox"}, 8),
        ((64, 512), 1, {"height": 64, "width": 64, "resize": "crop"}, 1),
        ((512, 512), 1, {"height": 64, "width": 64, "resize": "letterbox", "margin": 0.0}, 8),
        ((512, 512), 1, {}, 1),
    ],
)
def test_how_much_smaller_a_jpeg_is_decoded(
    size: tuple[int, int], orientation: int, form: dict[str, Any], step: int
) -> None:
    """The function gets no fewer pixels than from the whole one."""
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    data = file(PIL.Image.fromarray(ramp(*size)), exif=exif)
    assert Image("x", regions=True, **form).opened(data, [[0, 0, 1, 1]]).step == step
    assert Image("x", regions=True, **form).opened(data, [[0, 0, 1, 1], [0.5, 0.5, 0.51, 0.51]]).step == 1


def test_the_edge_of_a_picture_is_no_bar(decoder: str) -> None:
    red = np.zeros((40, 50, 3), np.uint8)
    red[:] = (250, 10, 20)
    for corners in (np.array([[0, 0], [1, 0], [0.8, 1], [0.2, 1]]), np.array([[0, 0.3], [1, 0], [1, 1], [0, 0.6]])):
        pixels, _ = Image("x", regions=True, fill=0).fit(red, corners)
        assert (pixels == red[0, 0]).all()


@pytest.mark.parametrize("channels", ["rgb", "bgr", "gray"])
def test_channels_of_a_smaller_jpeg(decoder: str, channels: str) -> None:
    whole = np.zeros((256, 256, 3), np.uint8)
    whole[:] = (200, 90, 30)
    image = Image("x", 16, 16, channels=channels, resize="letterbox", regions=True)
    pixels, _ = image.decode(file(PIL.Image.fromarray(whole), quality=95), [0, 0, 1, 1])
    wanted = {"rgb": [200, 90, 30], "bgr": [30, 90, 200], "gray": [116]}[channels]
    assert np.abs(pixels.astype(int) - wanted).max() <= 4


def nested(depth: float) -> Any:
    return np.array([[0.2, 0.2], [0.8, 0.2], [depth, depth], [0.2, 0.8]])


BAD = {
    "no number": ([0.1, 0.1, float("nan"), 0.9], "not finite"),
    "infinite": ([0.1, 0.1, float("inf"), 0.9], "not finite"),
    "empty": ([0.5, 0.1, 0.5, 0.9], "is empty in the picture"),
    "inside out": ([0.9, 0.1, 0.1, 0.9], "clockwise"),
    "beside the picture": ([1.2, 0.1, 1.5, 0.9], "is empty in the picture"),
    "anticlockwise": (box([0.1, 0.1, 0.9, 0.9])[::-1], "clockwise"),
    "crossed": (box([0.1, 0.1, 0.9, 0.9])[[0, 2, 1, 3]], "clockwise"),
    "a dent": (nested(0.3), "clockwise"),
    "three on a line": (nested(0.5), "clockwise"),
    "almost on a line": (nested(0.50001), "almost on one line"),
    "of another shape": ([0.1, 0.1, 0.9], r"of shape \[3\]"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_cut_says_why(name: str) -> None:
    region, text = BAD[name]
    with pytest.raises(PictureError, match=text):
        WHOLE.fit(ramp(50, 50), region)


def test_what_lies_outside_is_clipped_and_what_is_tiny_is_one_pixel() -> None:
    picture = noise(50, 40)
    assert np.array_equal(WHOLE.fit(picture, [-1, 0.5, 0.5, 7])[0], picture[25:, :20])
    pixels, fit = WHOLE.fit(picture, [0.5, 0.5, 0.5001, 0.5001])
    assert np.array_equal(pixels, picture[25:26, 20:21])
    assert fit.points([0.5, 0.5]).tolist() == [20.5, 25.5]
    assert np.array_equal(WHOLE.fit(picture, [0.9999, 0.9999, 1, 1])[0], picture[-1:, -1:])


def test_a_cut_takes_no_more_memory_than_its_picture() -> None:
    """Corners of which two pairs lie far apart have sides that are longer than what they span."""
    picture = ramp(8, 2000)
    corners = np.array([[0, 0], [1000, 0], [2000, 8], [1000, 8]]) / (2000, 8)
    pixels, fit = WHOLE.fit(picture, corners)
    assert pixels.nbytes <= picture.nbytes
    assert np.allclose(fit.points([[0, 0], pixels.shape[1::-1]]), [[0, 0], [2000, 8]])


# Batches.


def means(calls: list[Any] | None = None, **more: Any) -> Any:
    """A model of the mean colour of each row."""

    def mean(x: Any) -> Any:
        if calls is not None:
            calls.append([one.shape for one in x])
        return np.stack([one.reshape(-1, 3).mean(axis=0) for one in x]).astype(np.float32)

    return model(name="means", inputs=[Image("x", regions=True, **more)], outputs=[MEAN], batched=True)(mean)


def painted(*colours: tuple[int, int, int]) -> Any:
    """A picture of stripes, 32 pixels each, from left to right."""
    return np.repeat(np.array([colours], np.uint8), 32, axis=1).repeat(32, axis=0)


RED, GREEN, BLUE = (250, 0, 0), (0, 240, 0), (0, 0, 230)


def stripe(i: int, of: int) -> Any:
    return box([i / of, 0, (i + 1) / of, 1])


@pytest.mark.parametrize("sized", [{}, {"height": 16, "width": 16, "resize": "letterbox"}], ids=["lists", "arrays"])
@pytest.mark.parametrize("form", ["files", "pixels"])
def test_rows_are_regions_of_their_pictures(form: str, sized: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    decode = images.decode
    monkeypatch.setattr(images, "decode", lambda file, *more: (decoded.append(len(file)), decode(file, *more))[1])
    shapes: list[Any] = []
    made = means(shapes, **sized)
    first, second = painted(RED, GREEN), painted(BLUE, GREEN, RED)
    parts: list[Any] = [first, second]
    if form == "files":
        parts = [file(PIL.Image.fromarray(one), "PNG") for one in parts]
    corners = np.float32([stripe(1, 2), stripe(0, 3), stripe(0, 2), stripe(2, 3), [[0.5, 0]] * 4])
    batch = Batch(5)
    (got,) = made.run([Regions(parts, [0, 1, 0, 1, 1], corners)], batch)
    assert np.array_equal(got[:4], [GREEN, BLUE, RED, RED])
    assert list(batch.errors) == [4]
    assert batch.invalid == {4}
    assert "empty" in batch.errors[4]
    assert len(decoded) == (2 if form == "files" else 0)
    assert shapes == [[(16, 16, 3)] * 5 if sized else [(32, 32, 3)] * 4 + [(1, 1, 3)]]
    assert batch.fits["x"][1].boxes([0, 0, 1, 1]).shape == (4,)


def test_a_picture_that_cannot_be_decoded_fails_its_rows_alone() -> None:
    good = file(PIL.Image.fromarray(painted(RED, GREEN)), "PNG")
    batch = Batch(3)
    corners = np.float32([stripe(0, 2), stripe(1, 2), stripe(1, 2)])
    (got,) = means().run([Regions([good[:-9], good], [0, 0, 1], corners)], batch)
    assert sorted(batch.errors) == [0, 1]
    assert batch.invalid == {0, 1}
    assert np.array_equal(got[2], GREEN)


def test_whole_pictures_of_a_model_with_regions() -> None:
    shapes: list[Any] = []
    made = means(shapes)
    parts = files(file(PIL.Image.fromarray(painted(RED)), "PNG"), file(PIL.Image.fromarray(painted(BLUE, BLUE)), "PNG"))
    assert np.array_equal(made.run([parts], Batch(2))[0], [RED, BLUE])
    assert np.array_equal(made.run([painted(GREEN)[None]], Batch(1))[0], [GREEN])
    assert shapes == [[(32, 32, 3), (32, 64, 3)], [(32, 32, 3)]]


@pytest.mark.parametrize("later", [False, True])
def test_a_function_of_one_row(later: bool) -> None:
    def plain(x: Any, request: Request) -> Any:
        return np.float32(request.fits["x"].boxes([0, 0, x.shape[1], x.shape[0]]))

    async def awaited(x: Any, request: Request) -> Any:
        return plain(x, request)

    made = model(name="m", per_row=True, inputs=[WHOLE], outputs=[Tensor("box", "FP32", [-1, 4])])(
        awaited if later else plain  # type: ignore[arg-type]
    )
    corners = np.float32([stripe(0, 2), stripe(1, 2)])
    (got,) = made.run([Regions([painted(RED, GREEN)], [0, 0], corners)], Batch(2))
    assert got.tolist() == [[0, 0, 32, 32], [32, 0, 64, 32]]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"margin": 0.1}, "margin and context are for regions"),
        ({"regions": True, "margin": -1}, "margin is -1, expected 0 to 16"),
        ({"regions": True, "margin": float("nan")}, "margin is nan"),
        ({"regions": True, "margin": "a"}, "margin is 'a'"),
        ({"regions": True, "height": 8, "width": 8}, "regions have any size: say resize"),
        ({"regions": True, "context": True}, "context needs a height"),
    ],
)
def test_what_cannot_be_declared(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(DeclarationError, match=text):
        Image("x", **arguments)


def test_what_does_not_go_with_a_model() -> None:
    with pytest.raises(DeclarationError, match="each region is a row"):
        model(name="m", batched=False, inputs=[WHOLE], outputs=[MEAN])(lambda x: x)
    more = Tensor("x_regions", "FP32", [-1, 4])
    with pytest.raises(DeclarationError, match='clients send its regions as "x_regions"'):
        model(name="m", inputs=[WHOLE, more], outputs=[MEAN])(lambda x, x_regions: x)
    assert WHOLE.json()["image"] == {"channels": "rgb", "regions": True}
    assert "regions" not in Image("x", 8, 8).json()["image"]  # type: ignore[operator]


# The wire.


def texts(*elements: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(one)) + one for one in elements)


def sent(fake: Fake, peer: bytes, parts: list[bytes], of: list[int], corners: Any, ids: Any = None, **more: Any) -> Any:
    rows = np.float32(corners)
    ids = list(range(1, len(parts) + 1)) if ids is None else ids
    inputs = [("x", "BYTES", [len(parts)], texts(*parts)), ("x_regions", "FP32", list(rows.shape), rows.tobytes())]
    header: dict[str, Any] = {"pictures": {"x": {"of": of, "ids": ids}}} | more
    return fake.result(fake.batch(peer, len(rows), inputs, **header))


def test_over_the_wire_a_picture_is_decoded_once_for_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "IDLE_SECONDS", 1000.0)
    decoded: list[int] = []
    decode = images.decode
    monkeypatch.setattr(images, "decode", lambda file, *more: (decoded.append(len(file)), decode(file, *more))[1])
    first, second = (file(PIL.Image.fromarray(painted(*one)), "PNG") for one in ((RED, GREEN), (BLUE, GREEN, RED)))
    with Fake(images=True, regions=True) as fake, Container(means(), servers=fake.endpoint) as container:
        assert container.wait_ready(20)
        peer, hello = fake.hello()
        assert hello["inputs"][0]["image"] == {"channels": "rgb", "regions": True}
        assert hello["inputs"][0]["shape"] == [-1, -1, -1, 3]
        for _ in range(3):
            head, frames = sent(fake, peer, [first, second], [0, 1, 1], [stripe(0, 2), stripe(0, 3), stripe(1, 3)])
            assert np.array_equal(np.frombuffer(frames[0], "f4").reshape(-1, 3), [RED, BLUE, GREEN]), head
        assert sorted(decoded) == sorted([len(first), len(second)])
        _, frames = sent(fake, peer, [second], [0], [stripe(2, 3)], [2])
        assert np.array_equal(np.frombuffer(frames[0], "f4"), RED)
        assert len(decoded) == 2
        sent(fake, peer, [second], [0], [stripe(2, 3)], [3])
        assert len(decoded) == 3
        head, _ = sent(fake, peer, [first], [0, 0], [stripe(0, 2), box([0.5, 0, 0.5, 1])], [9], requests=[1, 1])
        assert [(one["row"], one["invalid"]) for one in head["errors"]] == [(1, True)]
        assert KEPT.bytes > 0
        monkeypatch.setattr(kept, "IDLE_SECONDS", 0.0)
        until = time.monotonic() + 20
        while KEPT.bytes:  # nothing is computed: they are freed
            assert time.monotonic() < until
            time.sleep(0.05)


def test_pictures_of_two_sessions_are_told_apart() -> None:
    one, other = (file(PIL.Image.fromarray(painted(colour)), "PNG") for colour in (RED, BLUE))
    with Fake(images=True) as a, Fake(images=True) as b, Container(means(), servers=[a.endpoint, b.endpoint]) as both:
        assert both.wait_ready(20)
        a_peer, b_peer = a.hello()[0], b.hello()[0]
        for _ in range(2):
            for fake, peer, data, colour in ((a, a_peer, one, RED), (b, b_peer, other, BLUE)):
                _, frames = sent(fake, peer, [data], [0], [stripe(0, 1)], [7])
                assert np.array_equal(np.frombuffer(frames[0], "f4"), colour)


LIES: dict[str, tuple[dict[str, Any], str]] = {
    "a picture that is not there": ({"pictures": {"x": {"of": [0, 2], "ids": [1, 2]}}}, "2 rows are regions of 2"),
    "a picture before the first": ({"pictures": {"x": {"of": [0, -1], "ids": [1, 2]}}}, "2 rows are regions of 2"),
    "too few rows": ({"pictures": {"x": {"of": [0], "ids": [1, 2]}}}, "2 rows are regions of 2"),
    "too few ids": ({"pictures": {"x": {"of": [0, 0], "ids": [1]}}}, "1 pictures with regions"),
    "too many ids": ({"pictures": {"x": {"of": [0, 0], "ids": [1, 2, 3]}}}, "3 pictures with regions"),
    "an id twice": ({"pictures": {"x": {"of": [0, 1], "ids": [1, 1]}}}, "the ids of pictures differ"),
    "no numbers": ({"pictures": {"x": {"of": ["0", 1], "ids": [1, 2]}}}, "of must be a list of integers"),
    "no object": ({"pictures": {"x": [0, 1]}}, "not the pictures of regions"),
    "a list": ({"pictures": [1]}, "pictures must be an object"),
    "no pictures": ({"pictures": {}}, 'regions of "x" need it'),
    "pictures of another input": ({"pictures": {"y": {"of": [0, 1], "ids": [1, 2]}}}, "which are no inputs"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lying_header_fails_its_batch_and_no_other(name: str) -> None:
    more, text = LIES[name]
    data = file(PIL.Image.fromarray(painted(RED)), "PNG")
    with Fake(images=True) as fake, Container(means(), servers=fake.endpoint):
        peer, _ = fake.hello()
        head, _ = sent(fake, peer, [data, data], [0, 1], [stripe(0, 1)] * 2, **more)
        assert text in head["error"]
        head, _ = sent(fake, peer, [data, data], [0, 1], [stripe(0, 1)] * 2)
        assert "error" not in head


def read(inputs: list[tuple[str, str, list[int], bytes]], rows: int, of: list[int], ids: list[int]) -> Any:
    heads = [{"name": name, "datatype": kind, "shape": shape} for name, kind, shape, _ in inputs]
    head = json.dumps({"rows": rows, "inputs": heads, "pictures": {"x": {"of": of, "ids": ids}}}).encode()
    batches = Batches(means())
    try:
        return batches.read(Delivery(b"12345678", head, [data for *_, data in inputs], 0.0, 5))
    finally:
        assert not batches._plans  # each has ids of its own


CORNERS = ("x_regions", "FP32", [1, 4, 2], np.float32(stripe(0, 1)).tobytes())


@pytest.mark.parametrize(
    ("first", "corners", "text"),
    [
        (("x", "BYTES", [1], texts(b"a", b"b")), CORNERS, "1 pictures expected, got 2"),
        (("x", "BYTES", [1], texts(b"abcd")[:-1]), CORNERS, "announces 4 bytes, 3 are left"),
        (("x", "BYTES", [1], b"abc"), CORNERS, "ends inside the length"),
        (("x", "BYTES", [1, 1], texts(b"a")), CORNERS, "got BYTES"),
        (("x", "UINT8", [1, 2, 2, 3], b"a" * 24), CORNERS, r"1 pictures of \[2, 2, 3\] expected, got 24 bytes"),
        (("x", "UINT8", [1, 2, 2, 3], b"a" * 11), CORNERS, "11"),
        (("x", "UINT8", [1, 0, 2, 3], b""), CORNERS, "1 pictures of"),
        (("x", "UINT8", [1, -2, -2, 3], b"a" * 12), CORNERS, "negative dimension"),
        (("x", "UINT8", [1, 2, 2, 4], b"a" * 16), CORNERS, "declared UINT8"),
        (("x", "FP32", [1, 2, 2, 3], b"a" * 48), CORNERS, "declared UINT8"),
        (("x", "BYTES", [1], texts(b"a")), ("x_regions", "FP32", [1, 4], b"0" * 16), "FP32 .1, 4, 2. expected"),
        (("x", "BYTES", [1], texts(b"a")), ("x_regions", "FP64", [1, 4, 2], b"0" * 64), "FP32 .1, 4, 2. expected"),
        (("x", "BYTES", [1], texts(b"a")), ("x_regions", "FP32", [2, 4, 2], b"0" * 64), "FP32 .1, 4, 2. expected"),
        (("x", "BYTES", [1], texts(b"a")), ("x_regions", "FP32", [1, 4, 2], b"0" * 31), "the frame has 31"),
    ],
)
def test_frames_that_are_not_what_they_say(first: Any, corners: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read([first, corners], 1, [0], [1])


def test_a_header_with_ids_is_not_remembered() -> None:
    (got,), batch, _ = read([("x", "BYTES", [1], texts(b"a")), CORNERS], 1, [0], [7])
    assert [bytes(one) for one in got.pictures] == [b"a"]
    assert (batch.rows, list(got.of), list(got.keys)) == (1, [0], [(5, "x", 7)])


def test_pictures_in_shared_memory_are_read_where_they_are() -> None:
    parts = [painted(RED, GREEN), painted(BLUE, RED)]
    packed = [texts(file(PIL.Image.fromarray(one), "PNG")) for one in parts]
    segment = Segment(1, "inputs")
    arena = Arena()
    assert arena.take(segment.offer, ()) == [{"segment": 1}]
    memory = np.frombuffer(arena._segments[1].bytes, np.uint8)

    def batch(kind: str, shape: list[int], pieces: list[bytes], starts: list[int]) -> Regions:
        for start, piece in zip(starts, pieces, strict=True):
            segment.map[start : start + len(piece)] = piece
        at = [n for start, piece in zip(starts, pieces, strict=True) for n in (1, start, len(piece))]
        corners = np.float32([stripe(0, 2), stripe(0, 2), stripe(1, 2)])
        head = {
            "rows": 3,
            "inputs": [
                {"name": "x", "datatype": kind, "shape": shape, "at": at},
                {"name": "x_regions", "datatype": "FP32", "shape": [3, 4, 2]},
            ],
            "pictures": {"x": {"of": [0, 1, 1], "ids": [1, 2]}},
        }
        delivery = Delivery(b"12345678", json.dumps(head).encode(), [b"", corners.tobytes()], 0.0, 5)
        (got,), _, lent = Batches(made).read(delivery, arena)
        assert isinstance(got, Regions)
        assert not lent
        return got

    made = means()
    try:
        raw = [one.tobytes() for one in parts]
        for kind, shape, pieces in (("BYTES", [2], packed), ("UINT8", [2, 32, 64, 3], raw)):
            far = batch(kind, shape, pieces, [8192, 65536])
            near = batch(kind, shape, [b"".join(pieces)], [131072])
            for got in (far, near):
                assert all(np.shares_memory(memory, np.frombuffer(one, np.uint8)) for one in got.pictures)
                assert np.array_equal(made.run([got], Batch(3))[0], [RED, BLUE, RED])
                KEPT.free(float("inf"))
            whole = b"".join(pieces)
            torn = batch(kind, shape, [whole[:50], whole[50:]], [4096, 65536])  # a piece ends within a picture
            assert np.array_equal(made.run([torn], Batch(3))[0], [RED, BLUE, RED])
            KEPT.free(float("inf"))
    finally:
        segment.close()


def test_what_a_function_keeps_is_its_own() -> None:
    """The memory of pictures belongs to others after the answer, and a decoded picture is kept."""
    held: list[Any] = []
    made = model(name="m", batched=True, inputs=[WHOLE], outputs=[MEAN])(
        lambda x: (held.extend(x), np.zeros((len(x), 3), np.float32))[1]
    )
    pixels = painted(RED, GREEN)
    data = file(PIL.Image.fromarray(pixels), "PNG")
    corners = np.float32([stripe(0, 1), stripe(1, 2)])
    made.run([Regions([pixels], [0, 0], corners)], Batch(2))
    made.run([Regions([data], [0, 0], corners, [("k", 1)])], Batch(2))
    whole = held[0].copy()
    pixels[:] = 0
    for one in held:
        assert not np.shares_memory(one, pixels)
    assert np.array_equal(held[0], whole)
    held[2][:] = 9
    held.clear()
    made.run([Regions([data], [0, 0], corners, [("k", 1)])], Batch(2))
    assert np.array_equal(held[0], whole)


def test_batches_of_several_servers_are_joined() -> None:
    a, b = painted(RED, GREEN), painted(BLUE)
    one = Regions([b, a], [1, 1], np.float32([stripe(0, 2), stripe(1, 2)]), [("s", 1), ("s", 2)])
    two = Regions([b], [0], np.float32([stripe(0, 1)]), [("t", 1)])
    both = Regions.joined([one, two])
    assert (list(both.of), list(both.keys)) == ([1, 1, 2], [("s", 1), ("s", 2), ("t", 1)])
    assert np.array_equal(means().run([both], Batch(3))[0], [RED, GREEN, BLUE])


# What is kept.


def blank(size: int) -> Picture:
    return Picture(np.zeros((size, 1, 1), np.uint8), size, 1)


def test_what_is_kept_is_bounded() -> None:
    memory = Kept(3, 1000)
    made: list[Any] = []

    def get(key: int, size: int) -> None:
        def make(before: Picture | None) -> Picture:
            if before is None:
                made.append(key)
            return before or blank(size)

        memory.get(key, make)

    for key in (1, 2, 1, 3, 1, 4, 1):
        get(key, 100)
    assert made == [1, 2, 3, 4]
    assert memory.bytes == 300
    get(2, 100)
    assert made[-1] == 2  # the one that was used least lately has gone
    get(5, 950)
    assert memory.bytes == 950
    get(6, 2000)  # larger than all: it is used, and not kept
    assert memory.bytes == 0
    get(7, 10)
    memory.free(time.monotonic())
    assert memory.bytes == 10
    memory.free(time.monotonic() + kept.IDLE_SECONDS + 1)
    assert memory.bytes == 0


def test_several_threads_decode_a_picture_once() -> None:
    memory = Kept()
    made: list[int] = []
    began = threading.Barrier(4)

    def make(before: Picture | None) -> Picture:
        if before is None:
            time.sleep(0.05)
            made.append(1)
        return before or blank(10)

    def one() -> None:
        began.wait()
        memory.get("k", make)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]


def test_what_fails_is_not_kept_and_is_tried_again() -> None:
    memory = Kept()

    def fail(before: Picture | None) -> Picture:
        raise PictureError("cut")

    with pytest.raises(PictureError):
        memory.get("k", fail)
    assert memory.get("k", lambda before: before or blank(10)).height == 10


def test_no_picture_is_decoded_more_than_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    decode = images.decode
    monkeypatch.setattr(images, "decode", lambda file, channels, said, step: (
        steps.append(step), decode(file, channels, said, step))[1])
    image = Image("x", 32, 32, resize="letterbox", regions=True)
    data = file(PIL.Image.fromarray(ramp(512, 512)))
    made = model(name="m", inputs=[image], outputs=[Tensor("y", "UINT8", [-1, 32, 32, 3])])(lambda x: x)
    for part in (1.0, 0.5, 0.9, 0.25, 0.05, 1.0):
        corners = np.float32([box([0, 0, part, part])])
        made.run([Regions([data], [0], corners, ["k"])], Batch(1))
    assert steps == [8, 1]
    assert pictures.header(data).size == (512, 512)

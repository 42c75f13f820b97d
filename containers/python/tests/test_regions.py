"""Regions of pictures: what is cut, how it comes back, and what is refused."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
from shiva_container import (
    DeclarationError,
    Fit,
    Image,
    PictureError,
    Tensor,
    images,
    model,
    pictures,
)
from test_pictures import file


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
    # At the edge of the picture, pixels are mixed of what is inside and outside, or repeated.
    apart = [np.linalg.norm(np.gradient(places, axis=axis), axis=2) for axis in (0, 1)]
    edge = 3 + 1.5 * np.maximum(*apart)
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
    assert (pixels[:11] == 255).all()
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


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("resize", images.RESIZES)
def test_a_whole_jpeg_is_decoded_smaller_too(
    decoder: str, resize: str, orientation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a third to a sixth of its size, of sides that are no multiples of two: its places are
    those of all its pixels, and its colours are near to theirs."""
    steps: list[int] = []
    decode = pictures.decode
    monkeypatch.setattr(images, "decode", lambda file, channels, said=None, step=1: (
        steps.append(step), decode(file, channels, said, step))[1])
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    stored = PIL.Image.fromarray(ramp(303, 481))
    image = Image("x", 96, 80, resize=resize, layout="nchw")
    pixels, fit = image.decode(file(stored, quality=95, exif=exif))
    assert steps == [4 if resize == "letterbox" else 2]
    stored.getexif()[0x0112] = orientation
    upright = np.asarray(PIL.ImageOps.exif_transpose(stored))
    whole, wanted = image.decode(file(PIL.Image.fromarray(upright), "PNG"))
    assert (fit.height, fit.width) == upright.shape[:2]
    assert not fit.back
    ends = np.float64([[0, 0], [80, 96], [40, 48], [17, 60]])
    assert np.abs(fit.points(ends, clip=False) - wanted.points(ends, clip=False)).max() < 5  # a pixel here
    inner = (slice(None), slice(30, 66), slice(30, 50))  # of a letterbox without bars and their edges
    places = fit.points(np.stack(np.meshgrid(np.arange(30, 50) + 0.5, np.arange(30, 66) + 0.5), axis=2))
    there = upright[places[..., 1].astype(int), places[..., 0].astype(int)].transpose(2, 0, 1).astype(int)
    assert np.abs(pixels[inner] - there).max() <= 5, "its fit is that of its own pixels"
    assert np.abs(pixels[inner].astype(int) - whole[inner]).max() <= 8


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
        model(name="m", batched=False, inputs=[WHOLE], outputs=[Tensor("mean", "FP32", [-1, 3])])(lambda x: x)
    more = Tensor("x_regions", "FP32", [-1, 4])
    with pytest.raises(DeclarationError, match='clients send its regions as "x_regions"'):
        model(name="m", inputs=[WHOLE, more], outputs=[Tensor("mean", "FP32", [-1, 3])])(lambda x, x_regions: x)
    assert WHOLE.json()["image"] == {"channels": "rgb", "regions": True}
    assert "regions" not in Image("x", 8, 8).json()["image"]  # type: ignore[operator]

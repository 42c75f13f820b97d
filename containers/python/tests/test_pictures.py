"""Pictures: the treatment of files that clients send, with every decoder."""

from __future__ import annotations

import concurrent.futures
import gc
import io
import struct
import threading
import time
import tracemalloc
import weakref
import zlib
from typing import Any

import numpy as np
import PIL.Image
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
    model,
    pictures,
)
from shiva_container.memory import Memory

HEIGHT, WIDTH = 48, 64
OUT = Tensor("y", "UINT8", [-1, HEIGHT, WIDTH, 3])
SIZE = Tensor("size", "INT64", [2])


def scene(height: int = HEIGHT, width: int = WIDTH, mode: str = "RGB") -> PIL.Image.Image:
    """A picture whose every part differs, so that none can be turned or moved unnoticed."""
    y, x = np.mgrid[0:height, 0:width]
    third = (x + 2 * y) * 255 // (width + 2 * height)
    pixels = np.stack([x * 255 // width, y * 255 // height, third], axis=2).astype(np.uint8)
    return PIL.Image.fromarray(pixels).convert(mode)


def file(picture: PIL.Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def turned(orientation: int, kind: str = "JPEG") -> bytes:
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    return file(scene(), kind, exif=exif)


def files(*all_: bytes) -> np.ndarray:
    array = np.empty(len(all_), object)
    array[:] = all_
    return array


def test_what_is_declared_is_said_in_hello() -> None:
    boxed = Image("image", height=480, width=640, channels="bgr", layout="nchw", resize="letterbox")
    assert boxed.json() == {
        "name": "image",
        "datatype": "UINT8",
        "shape": [-1, 3, -1, -1],
        "format": "FORMAT_NCHW",
        "image": {"channels": "bgr", "resize": "letterbox", "height": 480, "width": 640},
    }
    made = model(name="m", batched=False, inputs=[Image("image", channels="gray")], outputs=[SIZE])(lambda image: image)
    assert made.inputs[0].json() == {
        "name": "image",
        "datatype": "UINT8",
        "shape": [-1, -1, 1],
        "format": "FORMAT_NHWC",
        "image": {"channels": "gray"},
    }
    assert str(boxed) == "image UINT8 [-1, 3, -1, -1], FORMAT_NCHW, bgr pictures, letterbox to 640 x 480"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"channels": "rgba"}, "channels is 'rgba', expected one of 'rgb', 'bgr', 'gray'"),
        ({"layout": "hwc"}, "layout is 'hwc'"),
        ({"resize": "squeeze"}, "resize is 'squeeze'"),
        ({"resize": "stretch"}, "needs a height and a width"),
        ({"height": 0, "width": 8}, "height is 0, expected 1 to 65535"),
        ({"height": 8, "width": 70000}, "width is 70000"),
        ({"fill": 300}, "fill is 300"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(DeclarationError, match="image \"x\": .*" + text):
        Image("x", **arguments)


def test_pictures_of_a_batch_have_one_size_and_outputs_are_none() -> None:
    with pytest.raises(DeclarationError, match="have one size: give height and width"):
        model(name="m", inputs=[Image("x")], outputs=[OUT])(lambda x: x)
    with pytest.raises(DeclarationError, match="only inputs can be images"):
        model(name="m", inputs=[Image("x", 8, 8)], outputs=[Image("y", 8, 8)])(lambda x: x)


@pytest.mark.parametrize(
    ("there", "arguments", "text"),
    [
        (set(), {}, "no decoder of pictures is installed: pip install 'shiva-container\\[images\\]'"),
        ({"simplejpeg"}, {"height": 8, "width": 8, "resize": "stretch"}, "simplejpeg does not resize"),
    ],
)
def test_a_decoder_is_needed(
    monkeypatch: pytest.MonkeyPatch, there: set[str], arguments: dict[str, Any], text: str
) -> None:
    load = pictures._module.__wrapped__
    monkeypatch.setattr(pictures, "_module", lambda name: load(name) if name in there else None)
    with pytest.raises(DeclarationError, match=text):
        Image("x", **arguments)
    if there:
        with pytest.raises(PictureError, match="can decode JPEG only"):
            pictures.decode(file(scene(), "PNG"), "rgb")


@pytest.mark.parametrize("channels", ["rgb", "bgr", "gray"])
def test_files_are_what_a_client_would_decode(decoder: str, channels: str) -> None:
    wanted = np.asarray(scene().convert("L" if channels == "gray" else "RGB")).reshape(HEIGHT, WIDTH, -1)
    wanted = wanted[:, :, ::-1] if channels == "bgr" else wanted
    for kind, far in (("PNG", 1), ("JPEG", 24)):
        got = pictures.decode(file(scene(), kind, **({"quality": 95} if kind == "JPEG" else {})), channels)
        assert got.shape == wanted.shape
        assert got.dtype == np.uint8
        assert np.abs(got.astype(int) - wanted).max() <= far
    same = np.asarray(PIL.Image.open(io.BytesIO(file(scene()))))
    if channels == "rgb":
        assert np.abs(pictures.decode(file(scene()), "rgb").astype(int) - same).max() <= 2


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "1"])
def test_other_kinds_of_pixels_become_the_declared_ones(decoder: str, mode: str) -> None:
    got = pictures.decode(file(scene(mode=mode), "PNG"), "rgb")
    assert np.abs(got.astype(int) - np.asarray(scene(mode=mode).convert("RGB"))).max() <= 1
    if mode == "L":
        gray = pictures.decode(file(scene(mode=mode)), "rgb")
        assert (gray[:, :, 0] == gray[:, :, 2]).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_as_it_is_shown(decoder: str, orientation: int) -> None:
    from PIL.ImageOps import exif_transpose

    data = turned(orientation)
    wanted = np.asarray(exif_transpose(PIL.Image.open(io.BytesIO(data))))
    got = pictures.decode(data, "rgb")
    assert got.shape == wanted.shape
    assert np.abs(got.astype(int) - wanted).max() <= 2


def test_a_png_is_not_turned(decoder: str) -> None:
    assert np.array_equal(pictures.decode(turned(6, "PNG"), "rgb"), np.asarray(scene()))


def progressive_cut() -> bytes:
    whole = file(scene(240, 320), progressive=True)
    return whole[: len(whole) // 2]


def spoilt_png() -> bytes:
    whole = bytearray(file(scene(), "PNG"))
    whole[len(whole) // 2] ^= 0xFF
    return bytes(whole)


def hollow_png(depth: int = 8) -> bytes:
    """A PNG of which every part is right, except for its pixels, some of which are missing."""

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", WIDTH, HEIGHT, depth, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", b"not zlib") + part(b"IEND", b"")


BAD = {
    "a cut JPEG": (file(scene(240, 320))[:-2000], "JPEG: it ends after"),
    "a cut progressive JPEG": (progressive_cut(), "JPEG: it ends after"),
    "the first bytes of a JPEG": (file(scene())[:100], "JPEG: it ends after 100 bytes"),
    "only a mark": (b"\xff\xd8\xff", "JPEG: it ends after 3 bytes"),
    "only parts": (b"\xff\xd8" + b"\xff\xe0\0\2" * 70000, "JPEG: it ends after"),
    "a cut PNG": (file(scene(), "PNG")[:-20], "PNG: it ends after"),
    "a spoilt PNG": (spoilt_png(), "PNG: the checksum of its part"),
    "a hollow PNG": (hollow_png(), "PNG: "),
    "a PNG of 7 bits": (hollow_png(7), "PNG: it cannot be decoded$"),
    "no picture": (b"hello", "expected a JPEG or PNG file, got 5 bytes that begin with 68 65 6c 6c 6f"),
    "nothing": (b"", "got 0 bytes"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_decoded_says_why(decoder: str, name: str) -> None:
    data, text = BAD[name]
    with pytest.raises(PictureError, match=text):
        pictures.decode(data, "rgb")


def seen(**image: Any) -> Any:
    return model(name="seen", inputs=[Image("image", HEIGHT, WIDTH, **image)], outputs=[OUT])(lambda image: image)


def test_the_end_of_a_jpeg_is_looked_for_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []
    search = pictures.re.search
    monkeypatch.setattr(pictures.re, "search", lambda end, file: (searched.append(len(file)), search(end, file))[1])
    whole = file(scene())
    assert pictures.header(whole).size == (HEIGHT, WIDTH)
    assert searched == []
    padded = whole + bytes(1000)
    assert pictures.header(memoryview(padded)) == pictures.header(whole)
    assert len(searched) == 1
    with pytest.raises(PictureError, match="before the end of its picture"):
        pictures.header(whole[:-2] + bytes(1000))


def test_one_corrupt_of_64_fails_alone() -> None:
    data = [file(scene(), quality=50 + i % 40) for i in range(64)]
    good = np.stack([pictures.decode(one, "rgb") for one in data])
    data[17] = data[17][:-400]
    batch = Batch(64)
    (got,) = seen().run([files(*data)], batch)
    assert list(batch.errors) == [17]
    assert batch.invalid == {17}
    assert "JPEG: it ends after" in batch.errors[17]
    rest = np.arange(64) != 17
    assert np.array_equal(got[rest], good[rest])


def test_a_batch_of_nothing_good_is_not_computed() -> None:
    calls: list[int] = []
    ragged = [Tensor("boxes", "FP32", [-1, 4], ragged="n"), Tensor("n", "INT64", [-1]), Tensor("text", "BYTES", [-1])]
    made = model(name="m", inputs=[Image("image", HEIGHT, WIDTH)], outputs=ragged)(lambda image: calls.append(1))
    batch = Batch(2)
    boxes, counts, texts = made.run([files(b"", b"GIF89a")], batch)
    assert (boxes.shape, counts.tolist(), texts.tolist()) == ((0, 4), [0, 0], [b"", b""])
    assert (sorted(batch.errors), batch.invalid, calls) == ([0, 1], {0, 1}, [])
    alone = model(name="m1", batched=False, inputs=[Image("image")], outputs=[SIZE])(lambda image: calls.append(1))
    batch = Batch(1)
    one = np.empty((), object)
    one[()] = b"no"
    assert alone.run([one], batch)[0].shape == (2,)
    assert batch.invalid == {0}
    assert not calls


@pytest.mark.parametrize("kind", ["per row", "async", "async per row"])
def test_every_way_to_call_a_function(kind: str) -> None:
    shapes: list[Any] = []

    def plain(image: Any) -> Any:
        shapes.append(image.shape)
        return image

    async def later(image: Any) -> Any:
        return plain(image)

    per_row = "per row" in kind
    made = model(name="m", inputs=[Image("image", HEIGHT, WIDTH)], outputs=[OUT], per_row=per_row)(
        later if "async" in kind else plain  # type: ignore[arg-type]
    )
    batch = Batch(3)
    (got,) = made.run([files(file(scene(), "PNG"), b"bad", file(scene(), "PNG"))], batch)
    assert batch.invalid == {1}
    assert np.array_equal(got[0], np.asarray(scene()))
    assert shapes == ([(HEIGHT, WIDTH, 3)] * 2 if per_row else [(3, HEIGHT, WIDTH, 3)])


def test_pixels_come_as_they_are() -> None:
    pixels = np.stack([np.asarray(scene())] * 2)
    batch = Batch(2)
    assert seen().run([pixels], batch)[0] is pixels
    assert batch.fits == {"image": (Fit(HEIGHT, WIDTH),) * 2}


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("resize", ["stretch", "letterbox", "crop"])
def test_boxes_come_back(decoder: str, layout: str, resize: str) -> None:
    height, width = 90, 40
    whole = np.zeros((height, width, 3), np.uint8)
    whole[30:60, 10:20] = 255
    box = [10, 30, 20, 60]
    found: list[Any] = []

    def find(image: Any, batch: Batch) -> Any:
        back = []
        for row, fit in zip(image, batch.fits["image"], strict=True):
            white = row.min(axis=2 if layout == "nhwc" else 0) == 255
            y, x = np.nonzero(white)
            back.append(fit.boxes(np.array([x.min(), y.min(), x.max() + 1, y.max() + 1], "f4")))
        found.extend(back)
        return np.stack(back)

    declared = Image("image", 180, 240, resize=resize, layout=layout)
    made = model(name="m", inputs=[declared], outputs=[Tensor("box", "FP32", [-1, 4])])(find)
    made.run([files(file(PIL.Image.fromarray(whole), "PNG"))], Batch(1))
    raw = whole if layout == "nhwc" else whole.transpose(2, 0, 1)
    made.run([raw[None]], Batch(1))
    assert np.abs(np.array(found) - box).max() <= 1
    assert found[0].dtype == np.float32
    pixels, fit = declared.fit(raw)
    assert pixels.shape == ((180, 240, 3) if layout == "nhwc" else (3, 180, 240))
    if resize == "letterbox":
        assert (fit.scale_x, fit.scale_y, fit.top, fit.left) == (2, 2, 0, 80)
        bars = pixels if layout == "nhwc" else pixels.transpose(1, 2, 0)
        assert (bars[:, :80] == 114).all()
        assert (bars[:, 160:] == 114).all()
    if resize == "crop":  # 40 x 30 pixels of the middle are 240 x 180
        assert (fit.scale_x, fit.scale_y, fit.top, fit.left) == (6, 6, -180, 0)
        assert fit.points([[0, 0], [240, 180]]).tolist() == [[0, 30], [40, 60]]
        return
    corners = fit.points([[0, 0], [240, 180]])
    assert corners.tolist() == [[0, 0], [width, height]]  # not in the bars


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("resize", ["stretch", "letterbox", "crop"])
@pytest.mark.parametrize("channels", ["rgb", "gray"])
def test_pixels_are_made_where_they_belong(
    decoder: str, layout: str, resize: str, channels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is, in memory that is used again."""
    declared = Image("image", 400, 500, resize=resize, layout=layout, channels=channels)
    one = file(scene(700, 500), "PNG")
    alone, fit = declared.decode(one)
    out = np.zeros_like(alone)
    assert np.shares_memory(declared.decode(one, out=out)[0], out)
    assert np.array_equal(out, alone)
    memory = Memory()
    monkeypatch.setattr(images, "MEMORY", memory)
    monkeypatch.setattr(pictures, "_processors", lambda: 1)  # others may refer to a batch a little longer
    for _ in range(3):
        fits: images.Fits = {}
        pixels = images.see(declared, files(one, one), True, fits, {})
        assert [np.array_equal(row, alone) for row in pixels] == [True, True]
        assert fits["image"] == (fit, fit)
        del pixels
    assert len(memory._free) == 1


def test_a_part_of_a_large_picture_is_not_copied() -> None:
    part = np.tile(np.arange(250, dtype=np.uint8), (2000, 24)).reshape(2000, 2000, 3)[10:-10, 10:-10]
    tracemalloc.start()
    try:
        found = pictures.resized(part, 64, 64)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < part.nbytes / 10
    for some in (part[::-1], part[:, ::-1], part[:, :, ::-1]):
        assert (pictures.resized(some, 64, 64) == pictures.resized(some.copy(), 64, 64)).all()
    assert (found == pictures.resized(part.copy(), 64, 64)).all()


def test_a_jpeg_is_decoded_into_memory_that_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory()
    monkeypatch.setattr(pictures, "MEMORY", memory)
    one, wanted = file(scene(700, 500)), np.asarray(PIL.Image.open(io.BytesIO(file(scene(700, 500)))))
    for step in (1, 2):
        for _ in range(3):
            pixels = pictures.decode(one, "rgb", step=step)
            if step == 1:
                assert np.array_equal(pixels, wanted)
            del pixels
        assert len(memory._free) == 1


def test_a_function_of_one_row_finds_the_fit_with_its_request() -> None:
    def one(image: Any, request: Request) -> Any:
        fit = request.fits["image"]
        return np.array([fit.height, fit.width], "i8")

    made = model(
        name="m",
        per_row=True,
        inputs=[Image("image", 8, 8, resize="stretch")],
        outputs=[Tensor("size", "INT64", [-1, 2])],
    )(one)
    data = [file(scene(20 + i, 10), "PNG") for i in range(3)]
    assert made.run([files(*data)], Batch(3))[0].tolist() == [[20, 10], [21, 10], [22, 10]]


def test_a_picture_of_another_size_is_refused() -> None:
    batch = Batch(1)
    seen().run([files(file(scene(20, 30)))], batch)
    assert batch.errors[0] == "a picture of 30 x 20 pixels, expected 64 x 48"


def test_over_the_wire(caplog: pytest.LogCaptureFixture) -> None:
    good = file(scene(), "PNG")
    elements = b"".join(struct.pack("<I", len(one)) + one for one in (good, b"bad", good))
    with Fake(images=True) as fake, Container(seen(), servers=fake.endpoint) as container:
        assert container.wait_ready(20)
        peer, hello = fake.hello()
        assert hello["inputs"][0]["image"] == {"channels": "rgb"}
        for _ in range(2):  # the second time from the cached header
            header, frames = fake.result(fake.batch(peer, 3, [("image", "BYTES", [3], elements)]))
            assert header["errors"][0]["row"] == 1
            assert header["errors"][0]["invalid"] is True
            got = np.frombuffer(frames[0], np.uint8).reshape(3, HEIGHT, WIDTH, 3)
            assert np.array_equal(got[2], np.asarray(scene()))
        header, _ = fake.result(fake.batch(peer, 3, [("image", "BYTES", [1], elements)]))
        assert "declared UINT8" in header["error"]
    assert "takes no files of pictures" not in caplog.text


def test_a_server_that_does_not_know_pictures_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    with Fake() as fake, Container(seen(), servers=fake.endpoint) as container:
        assert container.wait_ready(20)
    assert "fake/1 takes no files of pictures: clients have to send pixels" in caplog.text


def test_an_error_waits_for_the_rows_that_are_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, released, called, ended = threading.Event(), threading.Event(), [], []

    def call(row: int) -> None:
        called.append(row)
        if threading.current_thread() is threading.main_thread():
            begun.wait(60)
            released.set()
            raise MemoryError
        begun.set()
        released.wait(60)
        time.sleep(0.05)
        ended.append(row)

    with concurrent.futures.ThreadPoolExecutor(1) as helper:
        monkeypatch.setattr(pictures, "_processors", lambda: 2)
        monkeypatch.setattr(pictures, "threads", lambda: helper)
        with pytest.raises(MemoryError):
            pictures.each(call, 9)
        assert sorted(called) == [0, 1]
        assert len(ended) == 1
        called.clear()
        pictures.each(called.append, 9)
        assert sorted(called) == list(range(9))


@pytest.mark.parametrize("bad", [b"bad", file(scene(), "PNG")[:-20], file(scene())[:-20]], ids=["no", "PNG", "JPEG"])
def test_a_picture_that_fails_keeps_no_input(bad: bytes) -> None:
    """A model that keeps one gets copies from then on, which one bad picture would cost all."""

    @model(
        name="weighted",
        inputs=[Image("image", height=HEIGHT, width=WIDTH), Tensor("weight", "FP32", [-1, 1])],
        outputs=[Tensor("weight", "FP32", [-1])],
        batched=True,
    )
    def weighted(image: Any, weight: Any) -> Any:
        return weight[:, 0].copy()

    weight = np.ones((2, 1), np.float32)
    kept = weakref.ref(weight)
    batch = Batch(2)
    gc.disable()
    try:
        weighted.run([files(bad, file(scene(), "PNG")), weight], batch)
        del weight
        assert list(batch.errors) == [0]
        assert kept() is None
    finally:
        gc.enable()

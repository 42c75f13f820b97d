"""Pictures that several models look at: what one has decoded is handed on, and used by others."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import PIL.Image
import pytest
from fake_server import Fake
from shiva_container import Container, Image, Tensor, images, model
from test_arena import Segment
from test_pictures import file, scene
from test_region_batches import texts
from test_regions import box

HEIGHT, WIDTH = 240, 320
MEAN = Tensor("mean", "FP32", [-1, 3])


def means(**more: Any) -> Any:
    def mean(x: Any) -> Any:
        return np.stack([one.reshape(-1, 3).mean(axis=0) for one in x]).astype(np.float32)

    return model(name="means", inputs=[Image("x", **more)], outputs=[MEAN], batched=True)(mean)


def photo(red: int = 0, height: int = HEIGHT, width: int = WIDTH) -> bytes:
    pixels = np.array(scene(height, width))
    pixels[..., 0] = red
    return file(PIL.Image.fromarray(pixels), quality=95)


class Rig:
    """A container, with segments of shared memory."""

    def __init__(self, fake: Fake) -> None:
        self.fake = fake
        self.inputs, self.outputs = Segment(1, "inputs"), Segment(2, "outputs", 1 << 20)
        self.peer, self.said = fake.hello()
        self.ids = itertools.count(1)
        for segment in (self.inputs, self.outputs):
            fake.send(self.peer, b"arena", json.dumps(segment.offer).encode())

    def close(self) -> None:
        self.inputs.close()
        self.outputs.close()

    def see(self, *pictures: bytes, regions: bool = False, **more: object) -> tuple[dict[str, Any], Any]:
        count = len(pictures)
        inputs = [("x", "BYTES", [count], texts(*pictures))]
        if regions:
            corners = np.float32([box([0, 0, 1, 1])] * count).tobytes()
            inputs.append(("x_regions", "FP32", [count, 4, 2], corners))
            more["pictures"] = {"x": {"of": list(range(count)), "ids": [next(self.ids) for _ in pictures]}}
        header, frames = self.fake.result(self.fake.batch(self.peer, count, inputs, **more))
        return header, np.frombuffer(frames[0], "f4").reshape(-1, 3) if frames else None

    def given(self, picture: int, step: int, pixels: Any, size: int = 0) -> dict[str, Any]:
        """Hand pixels on."""
        data = pixels.tobytes()
        self.inputs.map[8192 : 8192 + len(data)] = data
        return {"x": [{"picture": picture, "step": step, "at": [1, 8192, size or len(data)]}]}


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The step of each picture that was decoded."""
    steps: list[int] = []
    decode = images.decode
    monkeypatch.setattr(
        images,
        "decode",
        lambda file, channels, said, step: (steps.append(step), decode(file, channels, said, step))[1],
    )
    return steps


def handed(rig: Rig, said: dict[str, Any], height: int, width: int) -> Any:
    """The pixels that were handed on."""
    segment, offset, size = said["at"]
    assert (segment, size) == (2, height * width * 3)
    assert rig.outputs.word(said["at"]) == 1
    return np.frombuffer(rig.outputs.map, np.uint8, size, offset).reshape(height, width, 3)


def test_what_was_decoded_is_handed_on_if_it_is_fine_enough() -> None:
    with (
        Fake(images=True) as fake,
        Container(means(height=HEIGHT // 2, width=WIDTH // 2, resize="stretch"), servers=fake.endpoint),
    ):
        rig = Rig(fake)
        try:
            assert rig.said["opens"]
            wanted = [{"picture": i, "step": step} for i, step in ((0, 8), (2, 2), (3, 1))]
            header, _ = rig.see(photo(10), photo(20), photo(30), photo(40), open={"x": wanted})
            first, third = sorted(header["opened"]["x"], key=lambda one: one["picture"])
            assert (first["picture"], first["step"]) == (0, 2)
            assert (third["picture"], third["step"]) == (2, 2)  # the last one is too coarse
            for one, red in ((first, 10), (third, 30)):
                pixels = handed(rig, one, HEIGHT // 2, WIDTH // 2)
                assert abs(pixels[..., 0].astype(int) - red).max() <= 4
                assert np.ptp(pixels[..., 1]) > 200  # upright, and not gray
            header, _ = rig.see(photo(10))
            assert "opened" not in header
        finally:
            rig.close()


def test_pixels_for_which_there_is_no_memory_say_how_much_they_need() -> None:
    with Fake(images=True) as fake, Container(means(height=24, width=32, resize="stretch"), servers=fake.endpoint):
        rig = Rig(fake)
        try:
            header, _ = rig.see(photo(10, 1600, 2000), open={"x": [{"picture": 0, "step": 8}]})
            assert header["opened"]["x"] == [
                {"picture": 0, "step": 8, "at": [2, 4160, 200 * 250 * 3]}
            ]
            header, _ = rig.see(
                file(PIL.Image.new("RGB", (2000, 1600)), "PNG"), open={"x": [{"picture": 0, "step": 8}]}
            )
            assert header["opened"]["x"] == [{"picture": 0, "step": 1, "bytes": 1600 * 2000 * 3}]
        finally:
            rig.close()


def on_its_head(height: int, width: int) -> bytes:
    exif = PIL.Image.Exif()
    exif[0x0112] = 3
    return file(scene(height, width), exif=exif)


def test_a_turned_picture_is_handed_on_upright_or_not_at_all() -> None:
    """Decoded smaller and turned, it may begin with a part of a pixel."""
    wanted = {"x": [{"picture": 0, "step": 8}]}
    made = means(height=HEIGHT // 2, width=WIDTH // 2, resize="stretch")
    with Fake(images=True) as fake, Container(made, servers=fake.endpoint):
        rig = Rig(fake)
        try:
            header, _ = rig.see(on_its_head(HEIGHT, WIDTH), open=wanted)
            pixels = handed(rig, header["opened"]["x"][0], HEIGHT // 2, WIDTH // 2)
            whole = np.array(scene(HEIGHT // 2, WIDTH // 2)).astype(int)
            assert abs(pixels - whole[::-1, ::-1]).mean() < 8
            header, _ = rig.see(on_its_head(HEIGHT + 1, WIDTH + 1), open=wanted)
            assert "opened" not in header
        finally:
            rig.close()


def test_small_pictures_are_not_handed_on() -> None:
    """To decode them takes no longer."""
    with Fake(images=True) as fake, Container(means(height=24, width=32, resize="stretch"), servers=fake.endpoint):
        rig = Rig(fake)
        try:
            header, _ = rig.see(photo(10, 48, 64), open={"x": [{"picture": 0, "step": 8}]})
            assert "opened" not in header
        finally:
            rig.close()


@pytest.mark.parametrize("regions", [False, True], ids=["pictures", "regions"])
def test_what_was_handed_on_is_not_decoded_again(regions: bool, decoded: list[int]) -> None:
    made = means(height=HEIGHT // 2, width=WIDTH // 2, resize="stretch", regions=regions)
    pixels = np.full((HEIGHT // 2, WIDTH // 2, 3), 77, np.uint8)
    with Fake(images=True) as fake, Container(made, servers=fake.endpoint):
        rig = Rig(fake)
        try:
            for step, shown, size, used in (
                (2, pixels, 0, True),
                (1, pixels.repeat(2, axis=0).repeat(2, axis=1), 0, True),  # finer than needed
                (4, pixels[::2, ::2], 0, False),  # too coarse
                (2, pixels, pixels.size - 3, False),  # not all of them
                (0, pixels, 0, False),
                (-2, pixels, 0, False),
            ):
                decoded.clear()
                header, got = rig.see(photo(10), photo(20), regions=regions, opened=rig.given(1, step, shown, size))
                assert header["looked"] == {"x": [{"picture": 1, "step": 2}]}
                assert abs(got[0][0] - 10) < 3
                assert (abs(got[1] - 77).max() < 1e-3) == used
                assert decoded == [2] * (1 if used else 2)
            _, got = rig.see(photo(10), photo(20), regions=regions)
            assert abs(got[1][0] - 20) < 3  # nothing of it is kept
        finally:
            rig.close()


def test_a_function_may_keep_a_picture_that_was_handed_on() -> None:
    kept: list[Any] = []
    made = model(name="m", inputs=[Image("x", regions=False)], outputs=[MEAN], batched=True, per_row=True)(
        lambda x: (kept.append(x), np.zeros(3, np.float32))[1]
    )
    with Fake(images=True) as fake, Container(made, servers=fake.endpoint):
        rig = Rig(fake)
        try:
            rig.see(photo(10), opened=rig.given(0, 1, np.full((HEIGHT, WIDTH, 3), 77, np.uint8)))
            rig.given(0, 1, np.zeros((HEIGHT, WIDTH, 3), np.uint8))
            assert (kept[0] == 77).all()
        finally:
            rig.close()


LIES = {
    "no object": {"open": [1]},
    "no list": {"open": {"x": {}}},
    "no numbers": {"open": {"x": [{"picture": "0", "step": 1}]}},
    "half a place": {"opened": {"x": [{"picture": 0, "step": 1, "at": [1, 2]}]}},
    "no memory": {"opened": {"x": [{"picture": 0, "step": 1, "at": [1, 0, 1 << 40]}]}},
}


@pytest.mark.parametrize("name", LIES)
def test_a_lying_header_fails_its_batch_and_no_other(name: str) -> None:
    with Fake(images=True) as fake, Container(means(height=24, width=32, resize="stretch"), servers=fake.endpoint):
        rig = Rig(fake)
        try:
            assert "error" in rig.see(photo(10), **LIES[name])[0]
            assert "error" not in rig.see(photo(10))[0]
        finally:
            rig.close()

"""Batches whose rows are regions of pictures: over the wire, in shared memory, and what is kept."""

from __future__ import annotations

import json
import struct
import threading
import time
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
from fake_server import Fake
from shiva_container import (
    Batch,
    Container,
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
from shiva_container.memory import Memory
from shiva_container.regions import Picture
from shiva_container.session import Delivery
from test_arena import Segment
from test_pictures import file, files
from test_regions import WHOLE, box, ramp

MEAN = Tensor("mean", "FP32", [-1, 3])


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


@pytest.mark.parametrize(("side", "several"), [(64, False), (200, True)])
def test_small_regions_are_cut_without_other_threads(
    side: int, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads would wait longer for the interpreter's lock."""
    asked: list[int] = []
    threads = pictures.threads
    monkeypatch.setattr(pictures, "_processors", lambda: 2)
    monkeypatch.setattr(pictures, "threads", lambda: (asked.append(1), threads())[1])
    made = means(height=side, width=side, resize="stretch")
    picture = file(PIL.Image.fromarray(painted(RED, GREEN)), "PNG")
    corners = np.float32([stripe(0, 2), stripe(1, 2), stripe(0, 2)])
    (got,) = made.run([Regions([picture], [0, 0, 0], corners)], Batch(3))
    assert np.array_equal(got, [RED, GREEN, RED])
    assert bool(asked) == several


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


def test_a_picture_in_the_memory_of_a_larger_one_holds_all_of_it() -> None:
    blocks = Memory()
    blocks.take(4 << 20)  # free again at once
    pixels = np.frombuffer(blocks.take(1 << 20), np.uint8).reshape(1024, 1024, 1)
    for most, held in ((1 << 30, 4 << 20), (2 << 20, 0)):
        memory = Kept(most_bytes=most)
        memory.get("k", lambda _: Picture(pixels[::-1].swapaxes(0, 1), 1024, 1024))
        assert memory.bytes == held


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

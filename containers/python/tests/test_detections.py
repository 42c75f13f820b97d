from __future__ import annotations

import math

import numpy as np
import pytest
from shiva_container.detections import ROWS, ssd, suppress, yologeneric, yolox

WIDTH, HEIGHT, CLASSES = 320, 256, 5

# Class, score, and y_min, x_min, y_max, x_max from 0 to 1. The sides lie on whole pixels.
THINGS = [
    (3, 0.9, 32 / HEIGHT, 40 / WIDTH, 96 / HEIGHT, 80 / WIDTH),
    (1, 0.7, 128 / HEIGHT, 160 / WIDTH, 250 / HEIGHT, 300 / WIDTH),
    (4, 0.5, 0.0, 0.0, 16 / HEIGHT, 24 / WIDTH),
]


def expected(things: list[tuple[float, ...]]) -> np.ndarray:
    rows = np.zeros(ROWS, "f4")
    rows[: len(things)] = things
    return rows


def centre(thing: tuple[float, ...]) -> tuple[float, float, float, float]:
    """The centre and the sides of an object, in pixels."""
    _, _, top, left, bottom, right = thing
    return (left + right) / 2 * WIDTH, (top + bottom) / 2 * HEIGHT, (right - left) * WIDTH, (bottom - top) * HEIGHT


def generic(things: list[tuple[float, ...]], cells: int = 40) -> np.ndarray:
    """YOLO's answer for these objects, and for cells without any."""
    out = np.full((4 + CLASSES, cells), 0.01, "f4")
    for cell, thing in zip(range(cells - 1, 0, -7), things, strict=False):
        out[:4, cell] = centre(thing)
        out[4 + int(thing[0]), cell] = thing[1]
    return out


def test_yologeneric_finds_what_was_put_in() -> None:
    output = np.stack([generic(THINGS), generic([]), generic(THINGS[1:2])])
    found = yologeneric(output, WIDTH, HEIGHT)
    assert found.dtype == np.float32
    assert found.shape == (3, *ROWS)
    np.testing.assert_allclose(found[0], expected(THINGS), atol=1e-5)
    assert not found[1].any()
    np.testing.assert_allclose(found[2], expected(THINGS[1:2]), atol=1e-5)
    np.testing.assert_array_equal(yologeneric(output.transpose(0, 2, 1), WIDTH, HEIGHT), found)


def test_of_boxes_that_overlap_the_best_is_left() -> None:
    class_, score, top, left, bottom, right = THINGS[0]
    near = (2, score - 0.1, top, left + 2 / WIDTH, bottom, right + 2 / WIDTH)
    low = (class_, 0.3, *THINGS[1][2:])
    found = yologeneric(generic([near, THINGS[0], low])[None], WIDTH, HEIGHT)
    np.testing.assert_allclose(found[0], expected(THINGS[:1]), atol=1e-5)
    both = yologeneric(generic([near, THINGS[0], low])[None], WIDTH, HEIGHT, score=0.2, overlap=0.99)
    np.testing.assert_allclose(both[0], expected([THINGS[0], near, low]), atol=1e-5)


def test_boxes_end_at_the_image() -> None:
    out = generic([])[None].copy()
    out[0, :4, 3] = 0, HEIGHT, 100, 100
    out[0, 4, 3] = 0.8
    np.testing.assert_allclose(
        yologeneric(out, WIDTH, HEIGHT)[0], expected([(0, 0.8, (HEIGHT - 50) / HEIGHT, 0, 1, 50 / WIDTH)]), atol=1e-6
    )


def test_more_things_than_rows() -> None:
    things = [(0, 0.5 + i / 100, 0, i / 40, 0.02, (i + 1) / 40 - 0.001) for i in range(40)]
    output = np.full((1, 4 + CLASSES, 400), 0.0, "f4")
    for i, thing in enumerate(things):
        output[0, :4, 7 * i] = centre(thing)
        output[0, 4, 7 * i] = thing[1]
    found = yologeneric(output, WIDTH, HEIGHT)[0]
    np.testing.assert_allclose(found[:, 1], [t[1] for t in reversed(things[20:])], rtol=1e-6)


def raw(things: list[tuple[float, ...]]) -> np.ndarray:
    """YOLOX's answer: cell by cell, of the three grids."""
    cells: list[list[float]] = []
    left = [(thing, *centre(thing)) for thing in things]
    for number, stride in enumerate((8, 16, 32)):
        for y in range(HEIGHT // stride):
            for x in range(WIDTH // stride):
                cell = [0.5, 0.5, 0.0, 0.0, 0.01, *[0.1] * CLASSES]
                for entry in left:
                    thing, cx, cy, w, h = entry
                    at = int(cx // stride) == x and int(cy // stride) == y
                    if at and things.index(thing) % 3 == number:
                        cell = [cx / stride - x, cy / stride - y, math.log(w / stride), math.log(h / stride)]
                        cell += [thing[1] / 0.95]
                        cell += [0.95 if k == thing[0] else 0.0 for k in range(CLASSES)]
                cells.append(cell)
    return np.array(cells, "f4")


def test_yolox_finds_what_was_put_in() -> None:
    output = np.stack([raw([]), raw(THINGS)])
    found = yolox(output, WIDTH, HEIGHT)
    assert not found[0].any()
    np.testing.assert_allclose(found[1], expected(THINGS), atol=1e-5)


def test_ssd_takes_what_tensorflow_gives() -> None:
    boxes, classes, scores = np.zeros((2, 10, 4), "f4"), np.zeros((2, 10), "f4"), np.full((2, 10), 0.01, "f4")
    for row, at in enumerate((5, 0)):
        for i, thing in enumerate(THINGS[: 3 - row]):
            boxes[row, at + i], classes[row, at + i], scores[row, at + i] = thing[2:], thing[0], thing[1]
    found = ssd(boxes, classes, scores)
    np.testing.assert_allclose(found[0, :3], expected(THINGS)[:3])
    np.testing.assert_allclose(found[1, :2], expected(THINGS)[:2])
    assert (found[:, 3:10, 1] < 0.02).all()
    counted = ssd(boxes, classes, scores, np.array([[0], [1]], "f4"))
    assert not counted[0].any()
    np.testing.assert_allclose(counted[1], expected(THINGS[:1]))


def test_suppress_is_what_the_plain_loop_does() -> None:
    random = np.random.default_rng(1)
    low = random.uniform(0, 80, (60, 2))
    boxes = np.concatenate([low, low + random.uniform(1, 40, (60, 2))], axis=1).astype("f4")

    def shared(a: np.ndarray, b: np.ndarray) -> float:
        h, w = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
        both = max(h, 0) * max(w, 0)
        return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)

    for overlap in (0.1, 0.45, 0.8):
        kept: list[int] = []
        for i in range(len(boxes)):
            if all(shared(boxes[i].astype(float), boxes[k].astype(float)) <= overlap for k in kept):
                kept.append(i)
        assert suppress(boxes, overlap, most=60) == kept
        assert suppress(boxes, overlap, most=3) == kept[:3]


def test_nothing_in_nothing_out() -> None:
    assert yologeneric(np.zeros((0, 9, 40), "f4"), WIDTH, HEIGHT).shape == (0, *ROWS)
    assert ssd(np.zeros((0, 10, 4), "f4"), np.zeros((0, 10), "f4"), np.zeros((0, 10), "f4")).shape == (0, *ROWS)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: yologeneric(np.zeros((9, 40), "f4"), WIDTH, HEIGHT), r"\[rows, 4 \+ classes, cells\], got \[9, 40\]"),
        (lambda: yolox(np.zeros((1, 7, 10), "f4"), WIDTH, HEIGHT), r"expected \[rows, 1680, 5 \+ classes\]"),
        (lambda: yolox(np.zeros((1, 7, 10), "f4"), 300, HEIGHT), "multiples of 32, got 300 x 256"),
        (lambda: ssd(np.zeros((1, 3, 5)), np.zeros((1, 3)), np.zeros((1, 3))), "boxes: expected 3 dimensions"),
        (lambda: ssd(np.zeros((1, 3, 4)), np.zeros((1, 2)), np.zeros((1, 3))), r"classes: expected the shape \[1, 3\]"),
        (lambda: ssd(np.zeros((2, 3, 4)), np.zeros((2, 3)), np.zeros((2, 3)), [1]), "expected one for each of 2"),
    ],
)
def test_wrong_outputs_are_named(call, says) -> None:
    with pytest.raises(ValueError, match=says):
        call()

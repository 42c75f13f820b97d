from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from shiva_container import DATATYPES, DeclarationError, Tensor, TensorError
from shiva_container.tensors import convert, decode, encode

FIXED = [name for name in DATATYPES if name != "BYTES"]


@pytest.mark.parametrize("name", FIXED)
def test_every_bit_pattern_survives(name: str) -> None:
    dtype = DATATYPES[name]
    data = bytes(np.random.default_rng(1).integers(0, 256, dtype.itemsize * 24, dtype=np.uint8))
    if name == "BOOL":
        data = bytes(b & 1 for b in data)
    array = decode(data, name, [2, 3, 4])
    assert array.dtype == dtype
    assert array.shape == (2, 3, 4)
    assert bytes(encode(array, name)) == data


def test_known_values_are_little_endian() -> None:
    assert bytes(encode(np.array([1, -2], "i4"), "INT32")) == b"\1\0\0\0\xfe\xff\xff\xff"
    assert bytes(encode(np.array([1.5], ">f8").astype("<f8"), "FP64")) == struct.pack("<d", 1.5)
    assert bytes(encode(np.array([True, False]), "BOOL")) == b"\1\0"


def test_decoded_arrays_are_views_that_cannot_be_written() -> None:
    frame = bytearray(np.arange(6, dtype="<f4").tobytes())
    array = decode(memoryview(frame), "FP32", [2, 3])
    frame[0:4] = struct.pack("<f", 9)
    assert array[0, 0] == 9, "not a view"
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 1


def test_odd_addresses_are_aligned() -> None:
    frame = memoryview(b"x" + np.arange(3, dtype="<f8").tobytes())[1:]
    array = decode(frame, "FP64", [3])
    assert array.flags.aligned
    assert array.tolist() == [0, 1, 2]
    assert not array.flags.writeable


def test_zero_rows_and_zero_dimensions() -> None:
    assert decode(b"", "FP32", [0, 3]).shape == (0, 3)
    assert decode(b"", "BYTES", [0]).shape == (0,)
    assert bytes(encode(np.empty((2, 0), "f4"), "FP32")) == b""
    assert decode(b"\5\0\0\0", "INT32", []).shape == ()


def test_bytes_elements() -> None:
    frame = encode(np.array([[b"a\0", "grüß"], [b"", bytearray(b"x")]], object), "BYTES")
    array = decode(frame, "BYTES", [2, 2])
    assert array.tolist() == [[b"a\0", "grüß".encode()], [b"", b"x"]]
    assert encode(np.array(["ab"]), "BYTES") == b"\2\0\0\0ab"
    views = np.empty(1, object)
    views[0] = np.array([1, 2], "u2").data  # two elements, four bytes
    assert encode(views, "BYTES") == b"\4\0\0\0\1\0\2\0"


@pytest.mark.parametrize(
    ("frame", "count", "text"),
    [
        (b"\1\0\0\0", 1, "announces 1 bytes, 0 are left"),
        (b"\1\0\0\0a\0", 1, "1 bytes after"),
        (b"\1\0\0\0a\1\0\0", 2, "need at least|inside the length"),
        (b"\xff\xff\xff\xffabcd", 1, "announces 4294967295"),
        (b"", 1, "at least 4 bytes"),
    ],
)
def test_bad_bytes_frames(frame: bytes, count: int, text: str) -> None:
    with pytest.raises(TensorError, match=text):
        decode(frame, "BYTES", [count])


def test_frame_of_the_wrong_size() -> None:
    with pytest.raises(TensorError, match=r"FP32 \[2, 3\] is 24 bytes, the frame has 23"):
        decode(bytes(23), "FP32", [2, 3])
    with pytest.raises(TensorError, match="negative dimension"):
        decode(bytes(4), "FP32", [-1, -1])


def test_outputs_are_copied_unless_nobody_can_write_to_them() -> None:
    array = np.zeros(8192, "u1")
    sent = encode(array, "UINT8")
    array[:] = 7
    assert bytes(sent) == bytes(8192)
    array.flags.writeable = False
    assert np.shares_memory(np.frombuffer(encode(array, "UINT8"), "u1"), array)
    below = np.zeros(8192, "u1")
    sent = encode(np.broadcast_to(below, 8192), "UINT8")
    below[:] = 7
    assert bytes(sent) == bytes(8192)
    frame = bytearray(8193)
    for came in (memoryview(frame)[:8192], memoryview(frame)[1:]):
        again = decode(came, "FP32", [2048, 1])
        assert np.shares_memory(np.frombuffer(encode(again[:], "FP32"), "u1"), again)
    turned = np.arange(6, dtype="u1").reshape(2, 3).T
    turned.flags.writeable = False
    assert bytes(encode(turned, "UINT8")) == turned.tobytes()


def test_declarations() -> None:
    tensor = Tensor("x", "FP32", [-1, 3])
    assert tensor.json() == {"name": "x", "datatype": "FP32", "shape": [-1, 3]}
    assert tensor.accepts([5, 3])
    assert not tensor.accepts([5, 4])
    assert not tensor.accepts([5, 3, 1])
    with pytest.raises(DeclarationError, match="did you mean FP32"):
        Tensor("x", "float32", [-1])
    with pytest.raises(DeclarationError, match="a dimension is a size or -1, got -2"):
        Tensor("x", "FP32", [-1, -2])
    with pytest.raises(DeclarationError, match="got 0"):
        Tensor("x", "FP32", [-1, 0])
    with pytest.raises(DeclarationError, match="name"):
        Tensor("", "FP32", [-1])


@pytest.mark.parametrize(
    ("datatype", "value", "want"),
    [
        ("FP32", [1, 2.5], [1, 2.5]),
        ("UINT8", [[1], [255]], [[1], [255]]),
        ("INT64", [], []),
        ("BOOL", [True, False], [True, False]),
        ("BYTES", ["a", b"b"], ["a", b"b"]),
        ("BYTES", np.array(["a"]), ["a"]),
        ("BYTES", np.array(["a"], "T"), ["a"]),
        ("BYTES", np.array(["cat", "horse"])[:1], ["cat"]),
        ("BYTES", np.array([b"cat", b"dog"]), [b"cat", b"dog"]),
        ("BYTES", [np.bytes_(b"abc\0\0")], [b"abc\0\0"]),
        ("BYTES", np.bytes_(b"abc\0\0"), b"abc\0\0"),
        ("BYTES", np.array([b"abc\0\0"]).view("V5"), [b"abc\0\0"]),
        ("FP64", np.array([1.5], ">f8"), [1.5]),
        ("FP64", np.ma.array([1.5]), [1.5]),
        ("BF16", np.array([0x3F80], "u2"), [0x3F80]),
    ],
)
def test_convert_takes(datatype: str, value: object, want: object) -> None:
    array = convert(Tensor("y", datatype, [-1]), value)
    assert array.tolist() == want
    if datatype != "BYTES":
        assert array.dtype == DATATYPES[datatype]


@pytest.mark.parametrize(
    ("datatype", "value", "text"),
    [
        ("FP32", np.zeros(2), r'output "y": declared FP32 \[-1\], returned FP64 \[2\]; return .astype\("float32"\)'),
        ("INT64", [1.5], r"declared INT64, returned \[1.5\]"),
        ("UINT8", [256], r"declared UINT8, returned \[256\]"),
        ("BF16", np.zeros(1, "f4"), "bits of bfloat16"),
        ("FP32", ["a"], r"returned \['a'\]"),
        ("BYTES", [1], r"declared BYTES, returned \[1\]"),
        ("FP32", np.array(["a"], "T"), r"declared FP32 \[-1\], returned BYTES \[1\]"),
        ("BYTES", np.array([b"abc\0\0"]), 'output "y": .* S5 ends in zero bytes'),
        ("BYTES", np.array([b"ab\0", b"abc"])[:1], "S3 ends in zero bytes"),
        ("BYTES", [np.array([b"abc\0\0"])], "S5 ends in zero bytes"),
        ("BYTES", np.zeros(1, "u1,f4"), r"declared BYTES"),
        ("FP32", np.ma.array([1, 2], "f4", mask=[0, 1]), r'output "y": 1 of 2 values are masked'),
        ("FP32", [np.ma.array([1.0, 2.0], mask=[0, 1])], "1 of 2 values are masked"),
        ("FP32", np.ma.masked, "1 of 1 values are masked"),
        ("BYTES", np.zeros(1), r"declared BYTES \[-1\], returned FP64"),
        ("BOOL", np.zeros(1, "u1"), "declared BOOL"),
    ],
)
def test_convert_refuses(datatype: str, value: object, text: str) -> None:
    with pytest.raises(TensorError, match=text):
        convert(Tensor("y", datatype, [-1]), value)


def test_labels_and_format_are_declared() -> None:
    scores = Tensor("scores", "FP32", [-1, 3], labels=["cat", "", "grüner Baum"])
    assert scores.json()["labels"] == ["cat", "", "grüner Baum"]
    assert str(scores) == "scores FP32 [-1, 3], labels (3)"
    image = Tensor("image", "UINT8", [-1, 3, 8, 8], format="FORMAT_NCHW")
    assert image.json()["format"] == "FORMAT_NCHW"
    assert {"labels", "format"}.isdisjoint(Tensor("x", "FP32", [-1]).json()), "older servers get what they got"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"labels": "cat"}, "a list of texts, got the text 'cat'"),
        ({"labels": ["cat", 2]}, "label 1 is 2, expected a text"),
        ({"labels": ["cat", "do\ng"]}, r"label 1, 'do\\ng', has a control character"),
        ({"labels": ["\ud800"]}, "control character"),
        ({"labels": ["é" * 129]}, "label 0 is longer than 256 bytes"),
        ({"labels": [""] * 65537}, "65537 labels, limit 65536"),
        ({"format": "NHWC"}, "format 'NHWC', expected FORMAT_NHWC or FORMAT_NCHW"),
    ],
)
def test_bad_labels_and_formats(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(DeclarationError, match=text):
        Tensor("y", "FP32", [-1, 2], **changes)

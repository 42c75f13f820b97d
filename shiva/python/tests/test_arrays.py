"""Which arrays can be sent, which are copied, and which are refused."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conftest import Server
from shiva_client import Client, Message, wire

BIG = np.arange(24, dtype=">f8").reshape(2, 3, 4)
ARRAYS: list[Any] = [
    BIG, BIG[:, ::-1, 1:3], BIG.T, np.asfortranarray(BIG), np.broadcast_to(np.int16(3), (2, 5)), np.zeros((0, 3), "f4"),
    np.array(7, "u2"), np.float16(1.5), np.float32(-0.0), 3, 2.5, True, 1 + 2j, [], [[1, 2], [3, 4]], range(4),
    bytearray(b"ab"), np.longdouble(1) / 3, np.array([np.nan, np.inf], "f2"), np.ma.array([1, 2]), np.uint64(2**64 - 1),
    np.zeros((1,) * 64, "u1"), np.frombuffer(b"a file", "u1"),
]  # fmt: skip


@pytest.mark.parametrize("given", ARRAYS, ids=lambda a: f"{type(a).__name__} {np.asarray(a).dtype} {np.shape(a)}")
def test_arrays(server: Server, given: Any) -> None:
    with Client(server.address) as client:
        (got,) = client.infer("m", given).tensors
    want = np.asarray(given)
    assert got.shape == want.shape
    assert got.dtype == want.dtype.newbyteorder("=")
    assert got.dtype.isnative
    assert got.flags.writeable
    np.testing.assert_array_equal(got, want)


NO_ARRAYS: list[tuple[Any, str]] = [
    (np.array(["2026-11-22"], "M8[D]"), "datetime64"),
    (np.zeros(1, "u1,f4"), "which the protocol lacks"),
    ([1, None], "dtype object"),
    (np.zeros(2, ml_dtypes.bfloat16), "bfloat16, which the protocol lacks; send it as float32"),
    ([[1], [2, 3]], "inhomogeneous"),
    (np.ma.array([1, 2], mask=[0, 1]), "input 0 has masked values"),
    (2**64, "dtype object"),
]


@pytest.mark.parametrize(("given", "why"), NO_ARRAYS, ids=lambda v: str(v)[:20])
def test_no_arrays(server: Server, given: Any, why: str) -> None:
    with Client(server.address, in_flight=1) as client:
        for _ in range(2):  # and no slot is lost
            with pytest.raises(ValueError, match=why):
                client.infer("m", given)
        client.infer("m", [1])


TEXTS: list[tuple[Any, Any]] = [
    (np.array([["a", "b"]]), [["a", "b"]]),
    (np.array([b"\xfe", "c"], object), [b"\xfe", "c"]),
    (np.str_("x"), "x"),
    (np.array("x"), "x"),
    ("nul \0 ünd", "nul \0 ünd"),
    (np.empty((2, 0), object), [[], []]),
    (["abc\0\0"], ["abc\0\0"]),
    ((b"abc\0\0",), ["abc\0\0"]),
    ([np.bytes_(b"abc\0\0")], ["abc\0\0"]),
    (np.array([b"abc\0\0"], object), ["abc\0\0"]),
    (np.array([b"abc\0\0"]).view("V5"), ["abc\0\0"]),
    (np.array([b"cat", b"dog"]), ["cat", "dog"]),
    (np.array(["cat", "horse"]), ["cat", "horse"]),
    (np.array(["cat", "horse"])[:1], ["cat"]),
    (np.array([["cat", "horse"]]).T[::-1], [["horse"], ["cat"]]),
    (np.array([""]), [""]),
]


@pytest.mark.parametrize(("given", "want"), TEXTS)
def test_texts(server: Server, given: Any, want: Any) -> None:
    with Client(server.address) as client:
        answer = client.infer("m", {"t": given})
    assert answer["t"].tolist() == want
    assert answer["t"].shape == np.shape(given)


@pytest.mark.parametrize(
    "given",
    [
        np.array([b"abc\0\0"]), np.array([b"abc"], "S8"), np.array([b"ab\0", b"abc"]), np.array([b"ab\0", b"abc"])[::2],
        [np.array([b"abc\0\0"])], np.array(b"\0"), np.array(["abc\0\0"]), np.array(["abc"], ">U8"),
    ],
)  # fmt: skip
def test_zeros_that_numpy_takes_for_padding_are_refused(server: Server, given: Any) -> None:
    with Client(server.address) as client, pytest.raises(ValueError, match=r"input 't': .* end in zeros"):
        client.infer("m", {"t": given})
    assert not server.seen


def test_bytes_are_a_file(server: Server) -> None:
    with Client(server.address) as client:
        for answer in client.infer("m", b"\xff\xd8"), client.infer("m", {"image": b"\xff\xd8"}):
            assert answer.tensors[0].tolist() == [0xFF, 0xD8]
            assert answer.tensors[0].dtype == np.uint8
    assert server.seen[1].metadata == {"__tensors__": ["image"]}


def peak_of(client: Client, *inputs: Any) -> int:
    tracemalloc.start()
    try:
        client.infer("m", *inputs)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("dtype", "copies"), [("u1", 0), (">f4", 0), ("<f4", 1)])
def test_a_contiguous_array_is_not_copied(server: Server, dtype: str, copies: int) -> None:
    """Bytes are sent without a copy; larger elements are copied once, to swap their bytes."""
    size = 32 << 20
    array = np.zeros(size // np.dtype(dtype).itemsize, dtype)
    server.handler = lambda m: Message(m.namespace)
    with Client(server.address) as client:
        client.infer("m")
        peak = peak_of(client, array) - size  # the server, in this process, holds a copy, too
    assert copies * size <= peak < (copies + 0.1) * size


def test_an_answer_is_received_where_it_stays(server: Server) -> None:
    size = 32 << 20
    server.encoded = b"".join(wire.encode(Message("m", {}, [np.zeros(size // 4, "f4")])))
    with Client(server.address) as client:
        client.infer("m")
        assert size <= peak_of(client) < 1.1 * size

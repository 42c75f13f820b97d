from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shiva_client import Message, ProtocolError, wire

# Bytes from the reference implementation, and their contents.
GOLDEN = Path(__file__).parents[2] / "testdata" / "golden"
VECTORS: list[dict[str, Any]] = json.loads((GOLDEN / "index.json").read_text())["vectors"]


def decode(data: bytes, piece: int) -> tuple[list[Message], wire.Decoder]:
    decoder = wire.Decoder()
    messages: list[Message] = []
    while data:
        room = decoder.buffer()
        n = min(piece, len(room), len(data))
        room[:n] = data[:n]
        data = data[n:]
        messages += decoder.advance(n)
    return messages, decoder


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["file"])
def test_golden(vector: dict[str, Any], piece: int) -> None:
    data = (GOLDEN / vector["file"]).read_bytes()
    if piece < 4099 and len(data) > 100_000:
        piece = 4099
    try:
        messages, decoder = decode(data, piece)
    except ProtocolError:
        # Messages that only the reference accepts: more dimensions than numpy has, JSON nested too
        # deeply.
        assert not vector["valid"] or "rank" in vector["file"] or vector["file"].startswith("edge_")
        return
    if not vector["valid"]:
        # Faults that only a sender can have, such as a namespace of over 255 bytes.
        assert decoder.midway or not data or vector["file"].startswith("edge_"), vector["error"]
        return
    assert not decoder.midway
    (message,) = messages[:1]
    assert message.namespace == vector["namespace"]
    assert [list(t.shape) for t in message.tensors] == [t["shape"] for t in vector["tensors"]]
    for tensor, want in zip(message.tensors, vector["tensors"], strict=True):
        assert wire.DTYPES[want["dtype_code"]] == tensor.dtype
        # The padding of a longdouble is arbitrary, and the C++ library sends host byte order.
        if want["dtype_code"] != 12 and not vector["file"].startswith("cpp_"):
            little = tensor.astype(tensor.dtype.newbyteorder("<")).tobytes()
            assert hashlib.sha256(little).hexdigest() == want["data_le_sha256"]


def test_there_and_back() -> None:
    rng = random.Random(1)
    for _ in range(200):
        tensors = []
        for dtype in rng.sample(sorted(wire.CODES, key=str), 4):
            shape = [rng.randrange(4) for _ in range(rng.randrange(4))]
            array = (np.random.default_rng(rng.randrange(1000)).random(shape) * 100).astype(dtype)
            tensors.append(array.T if rng.random() < 0.5 else array)
        message = Message("é/" + "x" * rng.randrange(200), {"a": [1, None, "ü"], "b": {"c": 1.5}}, tensors)
        data = b"".join(wire.encode(message)) * 2
        got, decoder = decode(data, rng.randrange(1, 100))
        assert not decoder.midway
        for m in got:
            assert (m.namespace, m.metadata) == (message.namespace, message.metadata)
            for a, b in zip(m.tensors, tensors, strict=True):
                assert a.dtype == b.dtype
                assert a.dtype.isnative
                np.testing.assert_array_equal(a, b)
        assert len(got) == 2


def test_arrays_are_sent_from_where_they_lie() -> None:
    image = np.zeros((480, 640, 3), np.uint8)
    (data,) = (piece for piece in wire.encode(Message("m", {}, [image])) if len(piece) == image.nbytes)
    assert np.shares_memory(np.asarray(data), image)


def test_large_tensors_are_received_where_they_stay() -> None:
    decoder = wire.Decoder()
    data = b"".join(wire.encode(Message("m", {}, [np.arange(1 << 20, dtype=np.uint8)])))
    copied = 0
    messages: list[Message] = []
    while data:
        room = decoder.buffer()
        n = min(len(room), len(data))
        copied += n if len(room) <= wire.CHUNK else 0
        room[:n] = data[:n]
        data = data[n:]
        messages += decoder.advance(n)
    assert copied <= 2 * wire.CHUNK
    assert int(messages[0].tensors[0][-1]) == 255


def test_limit() -> None:
    head = wire.encode(Message("m", {}, [np.zeros(100, np.uint8)]))
    decoder = wire.Decoder(limit=50)
    data = b"".join(head)
    decoder.buffer()[: len(data)] = data
    with pytest.raises(ProtocolError, match="larger than 50 bytes"):
        decoder.advance(len(data))


def test_a_size_that_lies_takes_no_memory_beyond_the_limit() -> None:
    head = wire.HEADER.pack(*wire.MAGIC, (1 << 31) - 1, 0, 0, *(c := (84 + (1 << 31) - 1) % 256, 2 * c % 256))
    decoder = wire.Decoder(limit=1 << 20)
    decoder.buffer()[: len(head)] = head
    with pytest.raises(ProtocolError, match="larger than"):
        decoder.advance(len(head))

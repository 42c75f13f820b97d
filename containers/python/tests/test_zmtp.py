"""The decoder: its messages from right bytes in any pieces, and its errors for wrong ones."""

from __future__ import annotations

import random
import struct
import time

import pytest
import raw_server as raw
from shiva_container import zmtp
from shiva_container.tensors import Buffer

LARGE = bytes(range(256)) * (zmtp.LARGE // 128)
MESSAGES = [[b"welcome", b"{}"], [b"heartbeat"], [b"", b"", b""], [b"batch", raw.ID, bytes(300), LARGE], [LARGE, b"x"]]
UNITS = [
    raw.GREETING,
    raw.ready(),
    *(raw.message(*frames) for frames in MESSAGES[:3]),
    raw.command(b"PING", b"\0\0context"),
    *(raw.message(*frames) for frames in MESSAGES[3:]),
    raw.command(b"PONG"),
    raw.command(b"FUTURE", b"x"),
    raw.message(b"last"),
]


def played(pieces: list[bytes]) -> tuple[list[list[bytes]], bytes, str]:
    """The messages, the replies, and the error, for bytes that arrive in these pieces."""
    decoder = zmtp.Decoder()
    messages: list[list[Buffer]] = []
    for piece in pieces:
        while piece and not decoder.error:
            target = decoder.target
            if target is None:
                messages += decoder.feed(piece)
                break
            part = piece[: len(target)]
            target[: len(part)] = part
            messages += decoder.filled(len(part))
            piece = piece[len(part) :]
    return [[bytes(frame) for frame in frames] for frames in messages], b"".join(decoder.replies), decoder.error


def test_bytes_mean_the_same_in_any_pieces() -> None:
    data = b"".join(UNITS)
    rng = random.Random(1)
    cuts = [[at] for at in range(1, 600)] + [sorted(rng.sample(range(len(data)), 40)) for _ in range(50)]
    for cut in cuts:
        messages, replies, error = played([data[a:b] for a, b in zip([0, *cut], [*cut, len(data)], strict=True)])
        assert not error
        assert messages == [*MESSAGES, [b"last"]]
        assert replies == zmtp.READY + raw.command(b"PONG", b"context")
    assert played([data[i : i + 1] for i in range(len(data))])[0] == [*MESSAGES, [b"last"]]


def test_of_a_flood_of_pings_the_last_of_each_read_is_answered() -> None:
    flood = b"".join(raw.command(b"PING", struct.pack(">HI", 0, n)) for n in range(1000))
    assert played([raw.GREETING + raw.ready(), flood])[1] == zmtp.READY + raw.command(b"PONG", struct.pack(">I", 999))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "is not a ZeroMQ greeting"),
        (b"\xff" + bytes(9), "byte 9"),
        (b"\xff" + bytes(8) + b"\x7f\x01", "ZMTP 1, not 3"),
        (raw.GREETING.replace(b"NULL", b"CURVE"[:4]), "mechanism"),
        (raw.GREETING + raw.ready(b"DEALER"), "a b'DEALER' socket, not a ROUTER"),
        (raw.GREETING + raw.command(b"READY"), "a b'' socket"),
        (raw.GREETING + raw.command(b"READY", b"\x0bSocket-Type\xff\xff\xff\xffROUTER"), "cut short"),
        (raw.GREETING + raw.command(b"READY", b"\xff"), "property of READY"),
        (raw.GREETING + raw.command(b"ERROR", b"\x03bad"), "reports b'bad'"),
        (raw.GREETING + raw.command(b"PING", bytes(2)), "instead of READY"),
        (raw.GREETING + raw.message(b"welcome"), "before READY"),
        (raw.GREETING + raw.frame(b"", 4, 1 << 40), "a command of 1099511627776 bytes"),
        (raw.GREETING + raw.ready() + b"\x08\0", "flags 0x08"),
        (raw.GREETING + raw.ready() + b"\x05\0", "flags 0x05"),
        (raw.GREETING + raw.ready() + b"\x04\0", "a command has no name"),
        (raw.GREETING + raw.ready() + b"\x04\x02\x09P", "a command has no name"),
        (raw.GREETING + raw.ready() + raw.frame(b"a", 1) + raw.command(b"PING", bytes(2)), "inside a message"),
        (raw.GREETING + raw.ready() + raw.command(b"PING", b"\0"), "a PING of 1 bytes"),
        (raw.GREETING + raw.ready() + raw.command(b"PING", bytes(19)), "a PING of 19 bytes"),
        (raw.GREETING + raw.ready() + b"\1\0" * 5000, "more than 4096 frames"),
        (raw.GREETING + raw.ready() + raw.frame(b"", 0, 2**62), "no memory for a frame of 4611686018427387904 bytes"),
        (raw.GREETING + raw.ready() + raw.frame(bytes(9), 1) + raw.frame(b"", 0, 2**64 - 1), "no memory"),
    ],
)
def test_wrong_bytes(data: bytes, text: str) -> None:
    assert text in played([data])[2]
    assert text in played([data[i : i + 1] for i in range(len(data))])[2]


def test_a_claim_takes_no_memory() -> None:
    claims = []
    for _ in range(200):
        decoder = zmtp.Decoder()
        decoder.feed(raw.GREETING + raw.ready() + raw.frame(b"", 0, 64 << 20))
        claims.append(decoder)
    with open("/proc/self/statm") as f:
        assert int(f.read().split()[1]) * 4096 < 2 << 30, "12 GiB are claimed, and nothing was sent"


def test_wrong_conversations_end_in_an_error_or_in_messages() -> None:
    """Order and structure are mutated, and the outcome must not depend on how the bytes are cut."""
    rng = random.Random(int(time.time()))
    until = time.monotonic() + 3
    errors = played_well = 0
    while time.monotonic() < until:
        state = rng.getstate()
        data = b"".join(raw.mutated(UNITS, rng))
        cut = sorted(rng.sample(range(len(data) + 1), min(8, len(data) + 1)))
        began = time.thread_time()
        whole = played([data])
        parts = played([data[a:b] for a, b in zip([0, *cut], [*cut, len(data)], strict=True)])
        assert time.thread_time() - began < 2, state
        assert parts[0] == whole[0], state
        assert bool(parts[2]) == bool(whole[2]), state
        errors += bool(whole[2])
        played_well += not whole[2]
    assert errors
    assert played_well


@pytest.mark.parametrize("sizes", [[0], [255], [256, 0, 1], [zmtp.LARGE], [5, zmtp.LARGE - 1, 3 * zmtp.LARGE, 0, 7]])
def test_encoded_messages_are_read_back(sizes: list[int]) -> None:
    frames: list[Buffer] = [bytes(memoryview(LARGE * 2)[:size]) for size in sizes]
    pieces = zmtp.encode(frames)
    assert b"".join(pieces) == raw.message(*map(bytes, frames))
    assert len(pieces) <= 1 + 2 * sum(size >= zmtp.LARGE for size in sizes)

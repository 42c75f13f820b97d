"""A container that speaks Clipper's RPC version 3, written from the description of its frames alone.

    v3_container.py HOST:PORT NAME VERSION TYPE

TYPE is bytes, ints, floats, doubles or strings. Each input gives one output text: the sum of numbers, or for
strings the text reversed; the string "[]" gives a JSON array, and "crash" ends the process without an answer.

    container:  '' | 2                                      heartbeat
                '' | 0 | name | version | type | 3          new container
                '' | 1 | id | size u64 | N u64, N x u64 | output 1 | ... | output N
    server:     '' | 3 | 2 | t                              heartbeat reply, t = 1: please send "new container"
                '' | 3 | 1 | id | 0 | size u64 | type u64, N u64, N x u64 | input 1 | ... | input N
"""

from __future__ import annotations

import os
import struct
import sys
import time

import numpy as np
import zmq

TYPES = {"bytes": (0, "i1"), "ints": (1, "<i4"), "floats": (2, "<f4"), "doubles": (3, "<f8"), "strings": (4, "")}
HEARTBEAT_SECONDS = 5.0
SILENCE_SECONDS = 30.0


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def predict(kind: str, inputs: list[bytes]) -> list[str]:
    if kind != "strings":
        return [repr(np.frombuffer(data, TYPES[kind][1]).sum(dtype="f8").item()) for data in inputs]
    texts = [data.decode() for data in inputs]
    if "crash" in texts:
        os._exit(1)
    return ["[1, 2.5]" if text == "[]" else text[::-1] for text in texts]


def session(context: zmq.Context[zmq.Socket[bytes]], address: str, name: str, version: str, kind: str) -> None:
    """One socket's life, until the server has been silent for too long."""
    code = TYPES[kind][0]
    with context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(f"tcp://{address}")
        dealer.send_multipart([b"", u32(2)])
        heard = time.monotonic()
        while time.monotonic() - heard < SILENCE_SECONDS:
            if not dealer.poll(HEARTBEAT_SECONDS * 1000):
                dealer.send_multipart([b"", u32(2)])
                continue
            heard = time.monotonic()
            empty, rpc, what, *rest = dealer.recv_multipart()
            assert empty == b"", empty
            assert rpc == u32(3), rpc
            if what == u32(2):
                if rest == [u32(1)]:
                    dealer.send_multipart([b"", u32(0), name.encode(), version.encode(), str(code).encode(), u32(3)])
                continue
            assert what == u32(1), what
            batch_id, request, size, header, *inputs = rest
            assert request == u32(0), request
            assert struct.unpack("<Q", size)[0] == len(header), size
            got, count, *sizes = struct.unpack(f"<{len(header) // 8}Q", header)
            assert got == code, got
            assert count == len(inputs) > 0, (count, len(inputs))
            assert sizes == [len(data) for data in inputs], sizes
            outputs = [text.encode() for text in predict(kind, inputs)]
            header = struct.pack(f"<{1 + count}Q", count, *map(len, outputs))
            dealer.send_multipart([b"", u32(1), batch_id, struct.pack("<Q", len(header)), header, *outputs])


def main() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    address, name, version, kind = sys.argv[1:]
    while True:
        session(context, address, name, version, kind)


if __name__ == "__main__":
    main()

"""A container of one generation of Clipper's RPC, written from the specification of its frames.

    legacy_container.py [--one-buffer] RPC ADDRESS NAME VERSION TYPE...

ADDRESS is HOST:PORT or ipc://PATH. With --one-buffer each answer is made in the same memory and
sent without a copy, as Clipper's containers in C++ and Java do: ZeroMQ's own thread reads it some
time later.

RPC is v1, v1b, v2, v2a or v3; TYPE is bytes, ints, floats, doubles or strings; of several each is a
model NAME_TYPE. Each input gives one output: the sum of numbers. For strings it is their length
where the generation answers with floats, else the text reversed; there the string "[]" gives a JSON
array, and "crash" ends the process without an answer.

    container:  v1, v1b  '' | name | version | type                       registration; no heartbeat
                v2, v2a  '' | 2                                           heartbeat
                         '' | 0 | name | version | type                   new container
                v3       as v2, and | 3 after the type
    server:     v2, v2a  '' | 2 | t                                       t = 1: send new container
                v3       '' | 3 | 2 | t
    server:     v1       '' | id | 0 | header | content
                v1b      '' | id | 0 | size u64 | header | size u64 | content
                v2, v2a  '' | 1 | id | 0 | size u64 | header | size u64 | content
                v3       '' | 3 | 1 | id | 0 | size u64 | type u64, N u64, N x u64 | input...
    container:  v1, v1b  '' | id | float32 x N
                v2       '' | 1 | id | N, N x u32, the texts
                v2a      '' | 1 | id | float32 x N
                v3       '' | 1 | id | size u64 | N u64, N x u64 | output...

header is u32: type, N, and N - 1 offsets into the content, in elements. Texts in the content end
with a NUL.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

import numpy as np
import zmq

TYPES = {"bytes": (0, "i1"), "ints": (1, "<i4"), "floats": (2, "<f4"), "doubles": (3, "<f8"), "strings": (4, "")}
HEARTBEAT_SECONDS = 5.0
SILENCE_SECONDS = 30.0


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def sized(size: bytes, data: bytes) -> None:
    assert struct.unpack("<Q", size)[0] == len(data), (size, len(data))


def inputs_of(rpc: str, kind: str, frames: list[bytes]) -> list[bytes]:
    """The inputs of a request, without its envelope."""
    code, dtype = TYPES[kind]
    if rpc == "v3":
        size, header, *inputs = frames
        sized(size, header)
        got, count, *sizes = struct.unpack(f"<{len(header) // 8}Q", header)
        assert (got, count) == (code, len(inputs)), (got, count, len(inputs))
        assert sizes == [len(data) for data in inputs], sizes
        return inputs
    if rpc == "v1":
        header, content = frames
    else:
        header_size, header, content_size, content = frames
        sized(header_size, header)
        sized(content_size, content)
    got, count, *offsets = struct.unpack(f"<{len(header) // 4}I", header)
    assert got == code, got
    assert content, "Clipper sends no empty content"
    if kind == "strings":
        assert offsets == list(range(1, count)), offsets
        inputs = content.split(b"\0")
        assert inputs.pop() == b"", content
    else:
        inputs = [part.tobytes() for part in np.split(np.frombuffer(content, dtype), offsets)]
    assert count == len(inputs) > 0, (count, len(inputs))
    return inputs


def numbers(kind: str, inputs: list[bytes]) -> list[float]:
    if kind == "strings":
        return [float(len(data)) for data in inputs]
    return [np.frombuffer(data, TYPES[kind][1]).sum(dtype="f8").item() for data in inputs]


def texts(kind: str, inputs: list[bytes]) -> list[bytes]:
    if kind != "strings":
        return [repr(number).encode() for number in numbers(kind, inputs)]
    if b"crash" in inputs:
        os._exit(1)
    return [b"[1, 2.5]" if data == b"[]" else data.decode()[::-1].encode() for data in inputs]


def answer(rpc: str, kind: str, inputs: list[bytes]) -> list[bytes]:
    """The frames of an answer, without its envelope."""
    if rpc in ("v1", "v1b", "v2a"):
        return [np.array(numbers(kind, inputs), "<f4").tobytes()]
    outputs = texts(kind, inputs)
    if rpc == "v2":
        return [struct.pack(f"<{1 + len(outputs)}I", len(outputs), *map(len, outputs)) + b"".join(outputs)]
    header = struct.pack(f"<{1 + len(outputs)}Q", len(outputs), *map(len, outputs))
    return [struct.pack("<Q", len(header)), header, *outputs]


def placed(memory: bytearray, frames: list[bytes]) -> Iterator[memoryview]:
    at = 0
    for frame in frames:
        end = at + len(frame)
        memory[at:end] = frame
        yield memoryview(memory)[at:end]
        at = end


def session(
    context: zmq.Context[zmq.Socket[bytes]],
    rpc: str,
    address: str,
    name: str,
    version: str,
    kind: str,
    one_buffer: bool,
) -> None:
    """Serve one socket: for ever in v1, else until the server has been silent for too long."""
    memory = bytearray(1 << 16) if one_buffer else None
    who = [name.encode(), version.encode(), str(TYPES[kind][0]).encode()]
    old = rpc in ("v1", "v1b")
    with context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(address if "://" in address else f"tcp://{address}")
        dealer.send_multipart([b"", *who] if old else [b"", u32(2)])
        heard = time.monotonic()
        while old or time.monotonic() - heard < SILENCE_SECONDS:
            if not dealer.poll(HEARTBEAT_SECONDS * 1000):
                if not old:
                    dealer.send_multipart([b"", u32(2)])
                continue
            heard = time.monotonic()
            empty, *rest = dealer.recv_multipart()
            assert empty == b"", empty
            if rpc == "v3":
                assert rest.pop(0) == u32(3)
            if not old:
                what = rest.pop(0)
                if what == u32(2):
                    if rest == [u32(1)]:
                        dealer.send_multipart([b"", u32(0), *who, *([u32(3)] if rpc == "v3" else [])])
                    continue
                assert what == u32(1), what
            batch_id, request, *frames = rest
            assert request == u32(0), request
            reply = answer(rpc, kind, inputs_of(rpc, kind, frames))
            head = [b"", *([] if old else [u32(1)]), batch_id]
            if memory is None:
                dealer.send_multipart([*head, *reply])
                continue
            dealer.send_multipart(head, zmq.SNDMORE)
            dealer.copy_threshold = 0
            dealer.send_multipart(list(placed(memory, reply)), copy=False)


def main() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    args = sys.argv[1:]
    if one_buffer := args[0] == "--one-buffer":
        args.pop(0)
    rpc, address, name, version, *kinds = args

    def serve(kind: str) -> None:
        while True:
            session(context, rpc, address, name if len(kinds) == 1 else f"{name}_{kind}", version, kind, one_buffer)

    with ThreadPoolExecutor(len(kinds)) as pool:
        for done in as_completed(pool.submit(serve, kind) for kind in kinds):
            print(repr(done.exception()), file=sys.stderr, flush=True)
            os._exit(1)


if __name__ == "__main__":
    main()

"""Containers of RPC v0, written from the specification of its bytes: each listens for the server.

    v0_container.py [--alone] HOST:PORT...

--alone: a request of several rows is unknown, and closes the connection.

All integers and floats are little-endian. A request has a code u8 and a number of rows N u32, and
then

    1, 2, 3   int32, float64, uint8 of one length: elements of each row u32 | the rows
    4, 5, 6   the same of any length: size u32 | N x (elements u32 | the row)
    7         texts: size u32 | N x size u32 | an LZ4 frame of all texts and a newline
    0         goodbye (N is 0): answered with 1234 u32, and the connection is closed

and the answer is N float64: the sum of numbers, the length of texts.
"""

from __future__ import annotations

import socket
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

import numpy as np

DTYPES = ["<i4", "<f8", "u1"]


def u32(stream: BinaryIO) -> int:
    return int(struct.unpack("<I", exactly(stream, 4))[0])


def exactly(stream: BinaryIO, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = stream.read(size - len(data))
        if not more:
            raise EOFError
        data += more
    return bytes(data)


def unpack_block(block: bytes, out: bytearray) -> None:
    """LZ4 block format: repeated literals and matches in the bytes already decoded."""
    at = 0

    def length(short: int) -> int:
        nonlocal at
        if short == 15:
            while True:
                more = block[at]
                at += 1
                short += more
                if more < 255:
                    break
        return short

    while at < len(block):
        token = block[at]
        at += 1
        literals = length(token >> 4)
        out += block[at : at + literals]
        at += literals
        if at == len(block):
            return
        offset = int.from_bytes(block[at : at + 2], "little")
        at += 2
        for _ in range(length(token & 15) + 4):
            out.append(out[-offset])


def unpack_frame(frame: bytes) -> bytes:
    """LZ4 frame format, without its checksums."""
    assert frame[:4] == bytes.fromhex("04224d18"), frame[:4]
    flags = frame[4]
    assert flags >> 6 == 1, "version"
    assert not flags & 0x09, "no content size, no dictionary"
    at, out = 7, bytearray()
    while size := int.from_bytes(frame[at : at + 4], "little"):
        block = frame[at + 4 : at + 4 + (size & 0x7FFFFFFF)]
        if size >> 31:
            out += block
        else:
            unpack_block(block, out)
        at += 4 + len(block) + (4 if flags & 0x10 else 0)
    assert len(frame) == at + 4 + (4 if flags & 0x04 else 0)
    return bytes(out)


def rows_of(stream: BinaryIO, code: int, count: int) -> list[float]:
    if code <= 3:
        dtype = np.dtype(DTYPES[code - 1])
        size = u32(stream) * dtype.itemsize
        return [float(np.frombuffer(exactly(stream, size), dtype).sum()) for _ in range(count)]
    content = exactly(stream, u32(stream))
    if code == 7:
        sizes = struct.unpack(f"<{count}I", content[: 4 * count])
        text = unpack_frame(content[4 * count :])
        assert len(text) == sum(sizes) + 1
        assert text.endswith(b"\n")
        return [float(size) for size in sizes]
    dtype, answers = np.dtype(DTYPES[code - 4]), []
    while content:
        size = struct.unpack("<I", content[:4])[0] * dtype.itemsize
        answers.append(float(np.frombuffer(content[4 : 4 + size], dtype).sum()))
        content = content[4 + size :]
    assert len(answers) == count
    return answers


def serve(address: str, alone: bool) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_server((host, int(port))) as server:
        while True:
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as stream:
                while head := stream.read(1):
                    count = u32(stream)
                    if head[0] == 0:
                        connection.sendall(struct.pack("<I", 1234))
                        break
                    if alone and count != 1:
                        break
                    answers = rows_of(stream, head[0], count)
                    connection.sendall(struct.pack(f"<{count}d", *answers))


def main() -> None:
    alone = sys.argv[1] == "--alone"
    addresses = sys.argv[1 + alone :]
    with ThreadPoolExecutor(len(addresses)) as pool:
        for done in [pool.submit(serve, address, alone) for address in addresses]:
            done.result()


if __name__ == "__main__":
    main()

import socket
import struct

image = bytes.fromhex(  # 8x8 pixels, 0 for paper and 255 for ink
    "00000010af0000000000007080000000000010cf60202000000070ef008f8000"
    "0050ff9f00ff60000040efffcfff100000000030ef9f000000000020ff400000")
route, metadata = b"digits", b"{}"
crc = (6 + 66 + 11 + 1 + len(metadata) + 1 + len(route)) % 256
header = struct.pack(">4BiBBBB", 6, 66, 11, 1, len(metadata), 1, len(route), crc, 2 * crc % 256)
tensor = struct.pack(">BBii", 2, 3, 8, 8) + image  # rank 2, dtype 3 (uint8), shape [8, 8], data
with socket.create_connection(("127.0.0.1", 6174)) as server, server.makefile("rb") as answer:
    server.sendall(header + tensor + metadata + route)
    *magic, size, tensors, name, crc1, crc2 = struct.unpack(">4BiBBBB", answer.read(12))
    if tensors:  # scores: float32 [10], then label: int64 []; without them the metadata says why
        label = struct.unpack(">BBi10f BBq", answer.read(56))[-1]
    print(label if tensors else answer.read(size).decode())

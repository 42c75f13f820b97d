"""A Shiva client written only from the protocol's text: sockets, struct and numpy.

A message on the wire (all integers big-endian):

    06 42 0b 01 | metadata size i32 | tensors u8 | namespace size u8 | crc1 u8 | crc2 u8
    per tensor: rank u8 | dtype u8 | rank x i32 | data in C order, big-endian elements
    metadata (JSON) | namespace (UTF-8)
"""

from __future__ import annotations

import json
import math
import socket
import struct
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

MAGIC = b"\x06\x42\x0b\x01"

SEND = {
    "float16": 0,
    "float32": 1,
    "uint8": 3,
    "int8": 4,
    "uint16": 5,
    "int16": 6,
    "uint32": 7,
    "int32": 8,
    "uint64": 9,
    "float64": 11,
    "longdouble": 12,
    "int64": 13,
    "complex64": 14,
    "complex128": 15,
    "bool": 17,
}
RECEIVE = {code: np.dtype(name) for name, code in SEND.items()} | {2: np.dtype("float64"), 10: np.dtype("int64")}


@dataclass
class Message:
    """A message from one side to the other."""

    namespace: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: list[np.ndarray] = field(default_factory=list)

    def encode(self, codes: dict[str, int] = SEND) -> bytes:
        """The bytes of the message; ``codes`` may name other codes of the same dtypes."""
        metadata = json.dumps(self.metadata).encode()
        namespace = self.namespace.encode()
        crc1 = (sum(MAGIC) + len(metadata) + len(self.tensors) + len(namespace)) % 256
        parts = [MAGIC, struct.pack(">iBBBB", len(metadata), len(self.tensors), len(namespace), crc1, 2 * crc1 % 256)]
        for tensor in self.tensors:
            parts.append(struct.pack(f">BB{tensor.ndim}i", tensor.ndim, codes[_name(tensor.dtype)], *tensor.shape))
            parts.append(tensor.astype(tensor.dtype.newbyteorder(">")).tobytes())
        return b"".join([*parts, metadata, namespace])


def _name(dtype: np.dtype[Any]) -> str:
    return "longdouble" if dtype.type is np.longdouble else dtype.name


class Client:
    """One connection. ``send`` any number of requests, then ``receive`` in their order."""

    def __init__(self, address: str, timeout: float = 60) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host.strip("[]") or "127.0.0.1", int(port)), timeout)
        self._in = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._in.close()
        self.socket.close()

    def send(self, message: Message) -> None:
        self.socket.sendall(message.encode())

    def receive(self) -> Message:
        head = self._read(12)
        metadata_size, tensors, namespace_size, crc1, crc2 = struct.unpack(">4xiBBBB", head)
        want = (sum(MAGIC) + metadata_size + tensors + namespace_size) % 256
        if head[:4] != MAGIC or crc1 != want or crc2 != 2 * want % 256:
            raise ValueError(f"not a Shiva header: {head.hex()}")
        arrays = [self._tensor() for _ in range(tensors)]
        metadata = json.loads(self._read(metadata_size) or b"{}")
        return Message(self._read(namespace_size).decode(), metadata, arrays)

    def ask(self, namespace: str, *tensors: np.ndarray, **metadata: Any) -> Message:
        self.send(Message(namespace, metadata, list(tensors)))
        return self.receive()

    def _tensor(self) -> np.ndarray:
        rank, code = self._read(2)
        shape = struct.unpack(f">{rank}i", self._read(4 * rank))
        dtype = RECEIVE[code]
        data = self._read(math.prod(shape) * dtype.itemsize)
        return np.frombuffer(data, dtype.newbyteorder(">")).reshape(shape).astype(dtype)

    def _read(self, size: int) -> bytes:
        data = self._in.read(size)
        if len(data) != size:
            raise ConnectionError(f"the server closed after {len(data)} of {size} bytes")
        return data

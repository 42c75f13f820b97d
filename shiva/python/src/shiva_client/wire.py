"""Encoding and decoding of Shiva messages, without any input or output.

https://github.com/shivad/shivad/blob/main/server/manual/wire.md describes them.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ProtocolError

Array = NDArray[Any]

MAGIC = (6, 66, 11, 1)
MAGIC_SUM = sum(MAGIC)
HEADER = struct.Struct(">4BiBBBB")
TENSOR = struct.Struct(">BB")

# Wire codes and dtypes. C++ programs use other codes for float64 and int64, which are read but
# never written.
DTYPES: dict[int, np.dtype[Any]] = {
    code: np.dtype(name)
    for code, name in {
        0: "f2", 1: "f4", 3: "u1", 4: "i1", 5: "u2", 6: "i2", 7: "u4", 8: "i4", 9: "u8", 11: "f8", 12: "longdouble",
        13: "i8", 14: "c8", 15: "c16", 17: "?",
    }.items()
}  # fmt: skip
CODES = {dtype: code for code, dtype in DTYPES.items()}
DTYPES[2], DTYPES[10] = np.dtype("f8"), np.dtype("i8")

MAX_RANK = 32 if np.lib.NumpyVersion(np.__version__) < "2.0.0" else 64  # of numpy's arrays
MAX_TENSORS = 255
MAX_NAMESPACE = 255
CHUNK = 64 << 10


@dataclass
class Message:
    """A message: its route, metadata and tensors.

    Attributes:
        namespace: the route, such as ``digits``; ``!error`` in answers that are errors
        metadata: a JSON object
        tensors: arrays in native byte order, owned by the message
    """

    namespace: str
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: list[Array] = field(default_factory=list)


def encode(message: Message) -> list[bytes | memoryview]:
    """The bytes of a message, in pieces. Arrays that need no conversion are not copied."""
    route = message.namespace.encode()
    metadata = json.dumps(message.metadata, separators=(",", ":"), default=_plain).encode()
    if len(route) > MAX_NAMESPACE:
        raise ProtocolError(f"the namespace has {len(route)} bytes, at most {MAX_NAMESPACE} can be sent")
    if len(message.tensors) > MAX_TENSORS:
        raise ProtocolError(f"the message has {len(message.tensors)} tensors, at most {MAX_TENSORS} can be sent")
    crc = (MAGIC_SUM + len(metadata) + len(message.tensors) + len(route)) % 256
    pieces: list[bytes | memoryview] = [
        HEADER.pack(*MAGIC, len(metadata), len(message.tensors), len(route), crc, 2 * crc % 256)
    ]
    for i, tensor in enumerate(message.tensors):
        array = np.asarray(tensor)
        native = array.dtype.newbyteorder("=")
        if native not in CODES or array.dtype.hasobject:
            hint = "send it as float32" if array.dtype.name == "bfloat16" else "pass texts by the names of their inputs"
            raise ProtocolError(f"tensor {i} has dtype {array.dtype}, which the protocol lacks; {hint}")
        if array.ndim > MAX_RANK:
            raise ProtocolError(f"tensor {i} has {array.ndim} dimensions, at most {MAX_RANK} can be sent")
        pieces.append(TENSOR.pack(array.ndim, CODES[native]) + struct.pack(f">{array.ndim}i", *array.shape))
        pieces.append(_big_endian(array, native))
    pieces.append(metadata + route)
    return pieces


def _plain(value: Any) -> Any:
    """A numpy scalar or array in a form that JSON can encode."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be sent as JSON")


def _big_endian(array: Array, native: np.dtype[Any]) -> bytes | memoryview:
    if native == np.dtype("longdouble"):  # the padding comes first, and is sent as zeros
        raw = np.ascontiguousarray(array.astype(native)).reshape(-1).view("u1").reshape(-1, native.itemsize).copy()
        raw[:, 10:] = 0
        return raw[:, ::-1].tobytes()
    big = np.ascontiguousarray(array, dtype=native.newbyteorder(">")).reshape(-1)
    return big.view("u1").data if big.size else b""


class Decoder:
    """Decodes messages from bytes as they arrive. Each connection has one, used by one thread.

    A transport writes into ``buffer()``, and reports with ``advance`` how much it has written. The
    data of large tensors is received directly into their arrays.
    """

    def __init__(self, limit: int = 1 << 30) -> None:
        """Accept messages of at most ``limit`` bytes."""
        self._limit = limit
        self._chunk = memoryview(bytearray(CHUNK))
        self._messages: list[Message] = []
        self._parser = self._parse()
        self._into = next(self._parser)  # the parser waits until this is full
        self._filled = 0

    def buffer(self) -> memoryview:
        """Memory for the next bytes; never empty."""
        if self._direct():
            return self._into[self._filled :]
        return self._chunk

    def _direct(self) -> bool:
        return len(self._into) - self._filled >= CHUNK // 2

    def advance(self, n: int) -> list[Message]:
        """Take n more bytes, and return the messages that they complete."""
        start = end = 0  # bounds of the unparsed part of the chunk
        if self._direct():
            self._filled += n
        else:
            end = n
        while True:
            n = min(end - start, len(self._into) - self._filled)
            self._into[self._filled : self._filled + n] = self._chunk[start : start + n]
            start += n
            self._filled += n
            if self._filled < len(self._into):
                break
            self._into, self._filled = self._parser.send(None), 0
        messages, self._messages = self._messages, []
        return messages

    @property
    def midway(self) -> bool:
        """Whether a message has begun and is not complete."""
        return self._filled > 0 or len(self._into) != HEADER.size

    def _take(self, left: int, size: int) -> int:
        if size > left:
            raise ProtocolError(f"the message is larger than {self._limit} bytes, the limit of this client")
        return left - size

    def _parse(self) -> Generator[memoryview, None, None]:
        """Yields memory for the next bytes, and resumes when it is full."""
        while True:
            head = bytearray(HEADER.size)
            yield memoryview(head)
            *magic, size, tensors, route, crc1, crc2 = HEADER.unpack(head)
            crc = (MAGIC_SUM + size + tensors + route) % 256
            if tuple(magic) != MAGIC or (crc1, crc2) != (crc, 2 * crc % 256) or size < 0:
                raise ProtocolError(f"expected the header of a Shiva message, got {head.hex(' ')}")
            left = self._take(self._limit, len(head) + size + route)
            message = Message("")
            for i in range(tensors):
                kind = bytearray(TENSOR.size)
                yield memoryview(kind)
                rank, code = kind
                if code not in DTYPES or rank > MAX_RANK:
                    raise ProtocolError(f"tensor {i} has dtype {code} and {rank} dimensions, which cannot be read")
                dims = bytearray(4 * rank)
                if rank:
                    yield memoryview(dims)
                shape = struct.unpack(f">{rank}i", dims)
                dtype = DTYPES[code]
                count = 1
                for d in shape:
                    if d < 0:
                        raise ProtocolError(f"tensor {i} has shape {list(shape)}")
                    count *= d
                left = self._take(left, count * dtype.itemsize)
                raw = np.empty(count * dtype.itemsize, np.uint8)
                if raw.size:
                    yield raw.data
                try:
                    message.tensors.append(_native(raw, dtype).reshape(shape))
                except ValueError as error:  # an empty array with dimensions too large for numpy
                    raise ProtocolError(f"tensor {i} has shape {list(shape)}: {error}") from error
            text = bytearray(size + route)
            if text:
                yield memoryview(text)
            try:
                message.metadata = json.loads(text[:size].decode()) if size else {}
                message.namespace = text[size:].decode()
            except (ValueError, RecursionError) as error:
                raise ProtocolError(f"the metadata or the namespace of a message cannot be read: {error}") from error
            if not isinstance(message.metadata, dict):
                raise ProtocolError(f"expected metadata that is an object, got {type(message.metadata).__name__}")
            self._messages.append(message)


def _native(raw: NDArray[np.uint8], dtype: np.dtype[Any]) -> Array:
    if dtype == np.dtype("longdouble"):
        return np.ascontiguousarray(raw.reshape(-1, dtype.itemsize)[:, ::-1]).reshape(-1).view(dtype)
    array = raw.view(dtype)
    if dtype.itemsize > 1 and np.little_endian:
        array.byteswap(inplace=True)
    return array


def texts(value: Any) -> Any:
    """Texts as in ``__texts__``: lists nested by the shape; bytes that are not UTF-8 in base64."""
    if isinstance(value, np.ndarray):
        _refuse_padded(value)
        value = value.tolist()
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"b64": base64.b64encode(value).decode()}
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Sequence):
        return [texts(v) for v in value]
    raise ProtocolError(f"expected text, got {type(value).__name__}")


def _refuse_padded(array: Array) -> None:
    """Refuse an array of numpy's types S or U that may have lost zeros at the ends of its elements.

    numpy pads elements with zeros to one width, and reads all zeros at the end as padding. Bytes
    (S) that end in zeros are data as often as padding. Texts (U) are padded as a rule; but numpy
    makes an array as wide as its longest text, so if no element is as wide, they may have ended in
    zeros.
    """
    kind, width = array.dtype.kind, array.dtype.itemsize
    if kind not in "SU" or not array.size:
        return
    if kind == "S" and _full(array, 1).all():
        return
    if kind == "U":
        if width == 4 or _full(array, 4).any():
            return
        if isinstance(array.base, np.ndarray) and array.base.dtype == array.dtype:
            _refuse_padded(array.base)  # a part of an array has the width of the whole
            return
        width //= 4
    raise ProtocolError(
        f"elements of an array of numpy's type {kind}{width} end in zeros, which numpy cannot tell from padding: pass "
        "a list, or an array of dtype object; .astype(object) makes one without these zeros"
        + (f', .view("V{width}") an array with them' if kind == "S" else "")
    )


def _full(array: Array, unit: int) -> Array:
    """Which elements are as wide as their type, whose characters have ``unit`` bytes."""
    units = np.ascontiguousarray(array).reshape(-1).view(f"u{unit}").reshape(array.size, -1)
    full: Array = units[:, -1] != 0
    return full


def is_text(value: Any) -> bool:
    """Whether an input travels as text."""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return isinstance(value, str | bytes) or (isinstance(value, np.ndarray) and _is_text_type(value.dtype))


def _is_text_type(dtype: np.dtype[Any]) -> bool:
    """Whether elements are texts or bytes: also T, numpy 2's texts, and V, bytes of one length."""
    return dtype.kind in "SUOT" or (dtype.type is np.void and dtype.names is None)


def array_of_texts(value: Any) -> Array:
    """Texts of an answer as an array of objects: str, or bytes for a text that is not UTF-8."""

    def shape(v: Any) -> tuple[int, ...]:
        return (len(v), *(shape(v[0]) if v else ())) if isinstance(v, list) else ()

    def elements(v: Any, dims: tuple[int, ...]) -> Iterator[str | bytes]:
        if dims:
            if not isinstance(v, list) or len(v) != dims[0]:
                raise ValueError("the lists are not alike in length and depth")
            for one in v:
                yield from elements(one, dims[1:])
        elif isinstance(v, str):
            yield v
        else:
            yield base64.b64decode(v["b64"])

    try:
        dims = shape(value)
        array = np.empty(dims, object)
        array.reshape(-1)[:] = list(elements(value, dims))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"the texts of an answer cannot be read: {error}") from error
    return array

"""Declared tensors, and the one place where numpy arrays and wire bytes meet.

A tensor travels as one frame: the dense array, little-endian, in C order. BYTES elements have no
fixed size; each is a 4-byte little-endian length and that many bytes. Datatype names are those of
the Predict Protocol V2, with three more: LONGDOUBLE (16 bytes, where the platform's long double has
them), COMPLEX64 and COMPLEX128.
"""

from __future__ import annotations

import contextlib
import math
import struct
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
"""A numpy array of any dtype."""

Buffer = bytes | memoryview
"""Bytes received or to be sent; a frame is never copied just to change its type."""

_FIXED = {
    "BOOL": "?",
    "UINT8": "u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
    "BF16": "<u2",  # numpy has no bfloat16: the bits travel as uint16
    "COMPLEX64": "<c8",
    "COMPLEX128": "<c16",
}

DATATYPES: dict[str, np.dtype[Any]] = {name: np.dtype(code) for name, code in _FIXED.items()}
"""The numpy dtype in which a function gets and returns each datatype; BYTES are object arrays."""
DATATYPES["BYTES"] = np.dtype(object)
if np.dtype(np.longdouble).itemsize == 16:
    DATATYPES["LONGDOUBLE"] = np.dtype(np.longdouble)

FORMATS = ("FORMAT_NHWC", "FORMAT_NCHW")
"""The orders of an image's dimensions, in the names of Triton's model configuration."""

MAX_LABELS, MAX_LABEL = 65536, 256
"""The most labels of one output, and the most bytes of a label. A registration has a limit, too."""

_UNRANKED = ("BYTES", "LONGDOUBLE", "COMPLEX64", "COMPLEX128")

_HOLDS = {"b": "b", "u": "iu", "i": "iu", "f": "iuf", "c": "iufc", "O": "OSU"}
"""The kinds of Python values, as numpy reads them, that each kind of array holds without loss."""

_NAME_OF: dict[np.dtype[Any], str] = {dtype: name for name, dtype in DATATYPES.items() if name != "BF16"}


_WORTHWHILE = 4 << 10
"""Smaller arrays are copied: it takes longer to find out whether that is necessary."""


def is_part(text: str) -> bool:
    """Whether a text can be the name or the version of a model."""
    return bool(text) and "/" not in text and text.isprintable()


class DeclarationError(ValueError):
    """A model is declared in a way that no server could use; the text says which part and why."""


class TensorError(ValueError):
    """A tensor does not fit its declaration. The text says what was expected and what was given."""


@dataclass(frozen=True)
class Tensor:
    """The declaration of one input or output.

    ``shape`` uses -1 for a dimension of any size. The leading -1 of a batched model counts rows:
    the function gets several at once. ``Tensor("image", "UINT8", [-1, 8, 8])`` is a batch of 8x8
    images of bytes.

    ``optional``
        an input that a request may leave out, of a model that is not batched: the function gets
        None.
    ``ragged``
        an output of a batched model whose rows differ in size: ``Tensor("boxes", "FP32", [-1, 4],
        ragged="count")`` is any number of boxes for each row. It names another output, an INT32 or
        INT64 of shape [-1], with the number for each row; the function returns the ragged outputs
        only, each as a list with one array for each row, and the counts are computed from these.
    ``labels``
        the names of an output's classes, one for each value of a row: clients that ask for the
        highest values of ``Tensor("scores", "FP32", [-1, 2], labels=["cat", "dog"])`` also get
        their names.
    ``format``
        of an input that is an image, the order of its dimensions: "FORMAT_NHWC" or "FORMAT_NCHW",
        where N is the rows. Clients of the Predict Protocol find it in the model's configuration.
    """

    name: str
    datatype: str
    shape: Sequence[int]
    optional: bool = False
    ragged: str = ""
    labels: Sequence[str] = ()
    format: str = ""

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise DeclarationError(f"tensor: the name must be a text of at least one letter, got {self.name!r}")
        if self.datatype not in DATATYPES:
            hint = ""
            with contextlib.suppress(TypeError, KeyError):
                hint = f" (did you mean {_NAME_OF[np.dtype(self.datatype).newbyteorder('<')]}?)"
            raise DeclarationError(
                f'tensor "{self.name}": unknown datatype {self.datatype!r}{hint}; known: {", ".join(DATATYPES)}'
            )
        if not isinstance(self.shape, Sequence) or isinstance(self.shape, str):
            raise DeclarationError(
                f'tensor "{self.name}": the shape is a list, as [-1, 4], or [] for one value; got {self.shape!r}'
            )
        shape = tuple(self.shape)
        for dim in shape:
            if dim is None:
                raise DeclarationError(
                    f'tensor "{self.name}": a dimension of any size is written -1, not None, in {list(shape)}'
                )
            if not isinstance(dim, int) or isinstance(dim, bool) or dim < -1 or dim == 0:
                raise DeclarationError(
                    f'tensor "{self.name}": a dimension is a size or -1, got {dim!r} in {list(shape)}'
                )
        object.__setattr__(self, "shape", shape)
        if self.format not in ("", *FORMATS):
            raise DeclarationError(f'tensor "{self.name}": format {self.format!r}, expected {" or ".join(FORMATS)}')
        self._check_labels()

    def _check_labels(self) -> None:
        if isinstance(self.labels, str):
            raise DeclarationError(f'tensor "{self.name}": labels are a list of texts, got the text {self.labels!r}')
        labels = tuple(self.labels)
        if len(labels) > MAX_LABELS:
            raise DeclarationError(f'tensor "{self.name}": {len(labels)} labels, limit {MAX_LABELS}')
        for i, label in enumerate(labels):
            if not isinstance(label, str):
                raise DeclarationError(f'tensor "{self.name}": label {i} is {label!r}, expected a text')
            if len(label.encode(errors="surrogatepass")) > MAX_LABEL:
                raise DeclarationError(f'tensor "{self.name}": label {i} is longer than {MAX_LABEL} bytes of UTF-8')
            if any(unicodedata.category(c) in ("Cc", "Cs") for c in label):
                raise DeclarationError(f'tensor "{self.name}": label {i}, {label!r}, has a control character')
        object.__setattr__(self, "labels", labels)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of this tensor's arrays."""
        return DATATYPES[self.datatype]

    @property
    def ranked(self) -> bool:
        """Whether a server can tell which values are the highest, and so name them."""
        return self.datatype not in _UNRANKED

    @property
    def leads(self) -> bool:
        """Whether the first dimension is declared as -1; in a batched model it counts rows."""
        return len(self.shape) > 0 and self.shape[0] == -1

    def accepts(self, shape: Sequence[int]) -> bool:
        """Whether an array of this shape fits the declaration."""
        return len(shape) == len(self.shape) and all(
            want in (-1, got) for want, got in zip(self.shape, shape, strict=True)
        )

    def json(self) -> dict[str, object]:
        """The declaration in ``hello``."""
        head: dict[str, object] = {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}
        if self.optional:
            head["optional"] = True
        if self.ragged:
            head["ragged"] = self.ragged
        if self.labels:
            head["labels"] = list(self.labels)
        if self.format:
            head["format"] = self.format
        return head

    def __str__(self) -> str:
        kind = ", optional" if self.optional else f", ragged by {self.ragged}" if self.ragged else ""
        form = f", {self.format}" if self.format else ""
        named = f", labels ({len(self.labels)})" if self.labels else ""
        return f"{self.name} {self.datatype} {list(self.shape)}{kind}{form}{named}"


def describe(array: Array) -> str:
    """The datatype and shape of an array in the words of a declaration, for error texts."""
    name = _NAME_OF.get(array.dtype.newbyteorder("<"), f"numpy {array.dtype}")
    return f"{name} {list(array.shape)}"


def decode(frame: Buffer, datatype: str, shape: Sequence[int]) -> Array:
    """A read-only array over the frame's own memory.

    The frame is copied only where it must be: BYTES become Python objects, and a frame that the
    network library placed at an odd address is moved, since much numerical code needs alignment.
    """
    if datatype not in DATATYPES:
        raise TensorError(f"unknown datatype {datatype!r}")
    if any(dim < 0 for dim in shape):
        raise TensorError(f"negative dimension in {list(shape)}")
    count = math.prod(shape)
    if datatype == "BYTES":
        return _decode_bytes(frame, count).reshape(shape)
    dtype = DATATYPES[datatype]
    if len(frame) != count * dtype.itemsize:
        raise TensorError(f"{datatype} {list(shape)} is {count * dtype.itemsize} bytes, the frame has {len(frame)}")
    array: Array = np.frombuffer(frame, dtype) if count else np.empty(0, dtype)
    if not array.flags.aligned:
        array = array.copy()
    array.flags.writeable = False
    return array.reshape(shape)


def _decode_bytes(frame: Buffer, count: int) -> Array:
    data = bytes(frame)
    if count * 4 > len(data):
        raise TensorError(f"{count} BYTES elements need at least {count * 4} bytes, the frame has {len(data)}")
    array = np.empty(count, object)
    at = 0
    for i in range(count):
        if at + 4 > len(data):
            raise TensorError(f"BYTES frame ends inside the length of element {i} of {count}")
        (size,) = struct.unpack_from("<I", data, at)
        at += 4
        if at + size > len(data):
            raise TensorError(f"BYTES element {i} of {count} announces {size} bytes, {len(data) - at} are left")
        array[i] = data[at : at + size]
        at += size
    if at != len(data):
        raise TensorError(f"BYTES frame has {len(data) - at} bytes after its {count} elements")
    return array


def elements(frame: Buffer) -> list[memoryview]:
    """The elements of a tensor of BYTES, where they lie."""
    data, found, at = memoryview(frame), list[memoryview](), 0
    while at < len(data):
        if at + 4 > len(data):
            raise TensorError(f"BYTES frame ends inside the length of element {len(found)}")
        (size,) = struct.unpack_from("<I", data, at)
        at += 4
        if at + size > len(data):
            raise TensorError(f"BYTES element {len(found)} announces {size} bytes, {len(data) - at} are left")
        found.append(data[at : at + size])
        at += size
    return found


def encode(array: Array, datatype: str, *, copy: bool = False) -> Buffer:
    """The frame of an array that :func:`convert` accepted.

    The bytes are copied, so that the function may use its array again at once; except that an array
    to which no code can write (an input that is returned, or one that the function marked read-only
    as a promise not to change it) is sent in place, unless ``copy``.
    """
    if datatype == "BYTES":
        parts = bytearray()
        for i, item in enumerate(array.flat):
            data = item.encode() if isinstance(item, str) else item.tobytes() if isinstance(item, memoryview) else item
            if not isinstance(data, bytes | bytearray):
                raise TensorError(f"element {i} is {type(item).__name__}, BYTES elements are bytes or str")
            parts += struct.pack("<I", len(data))
            parts += data
        return bytes(parts)
    if not copy and array.nbytes >= _WORTHWHILE and array.flags.c_contiguous and _settled(array):
        return array.reshape(-1).view(np.uint8).data
    return array.tobytes()


def _settled(array: Array) -> bool:
    """Whether no code can write to an array, nor to one that it is a view of."""
    below: object = array
    while isinstance(below, np.ndarray) and not below.flags.writeable:
        below = below.base
    return not isinstance(below, np.ndarray)


def convert(tensor: Tensor, value: object) -> Array:
    """The value that a function returned for ``tensor``, as an array of exactly the declared dtype.

    Python numbers, texts and lists take the declared dtype if it can hold them. An array must
    already have it: a silent cast could change values, and an astype() in the model costs one word.
    """
    if type(value) is np.ndarray and value.dtype == tensor.dtype and value.dtype != object:
        return value
    _refuse_masked(tensor, value)
    if tensor.datatype == "BYTES":
        _refuse_padded(tensor, value)
        if isinstance(value, np.character):  # as an array it would lose zeros at its end
            return np.array([value], object).reshape(())
    if not isinstance(value, np.ndarray | np.generic) and not hasattr(value, "__array__"):
        try:
            plain = np.asarray(value)
            if plain.size and plain.dtype.kind not in _HOLDS[tensor.dtype.kind]:
                raise TypeError(f"numpy reads it as {plain.dtype}")
            return np.asarray(value, dtype=tensor.dtype)
        except (ValueError, TypeError, OverflowError) as e:
            raise TensorError(
                f'output "{tensor.name}": declared {tensor.datatype}, returned {_brief(value)}: {e}'
            ) from e
    array = np.asarray(value)
    if array.dtype.kind == "T":  # numpy 2's strings of any length, which have no byte order
        array = array.astype(object)
    if tensor.datatype == "BYTES":
        if array.dtype.kind in "OSU" or (array.dtype.type is np.void and array.dtype.names is None):
            return array.astype(object, copy=False)
    elif array.dtype.newbyteorder("<") == tensor.dtype:
        return array.astype(tensor.dtype, copy=False)
    raise TensorError(
        f'output "{tensor.name}": declared {tensor.datatype} {list(tensor.shape)}, returned {describe(array)}; '
        f"return .astype({_astype(tensor)})"
    )


def _refuse_masked(tensor: Tensor, value: object) -> None:
    """Refuse masked values: the wire has none, and what is behind a mask is nobody's answer."""
    if isinstance(value, list | tuple) and value and isinstance(value[0], np.ndarray | list | tuple):
        for one in value:
            _refuse_masked(tensor, one)
    elif isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise TensorError(
            f'output "{tensor.name}": {int(np.ma.getmaskarray(value).sum())} of {value.size} values are masked, and '
            "clients get no masks: return .filled(a value for them)"
        )


def _refuse_padded(tensor: Tensor, value: object) -> None:
    """Refuse bytes in arrays of numpy's type S that may have lost zeros at their ends.

    numpy pads elements with zeros to one width, and reads all zeros at the end as padding. Texts
    (type U) end in none, and are padded wherever a function picks from an array of labels.
    """
    if isinstance(value, list | tuple):
        for one in value:
            _refuse_padded(tensor, one)
    elif isinstance(value, np.ndarray) and value.dtype.kind == "S" and value.size:
        width = value.dtype.itemsize
        if not np.ascontiguousarray(value).reshape(-1).view(np.uint8).reshape(-1, width)[:, -1].all():
            raise TensorError(
                f'output "{tensor.name}": an element of an array of numpy\'s type S{width} ends in zero bytes, which '
                "numpy cannot tell from padding: return a list of bytes, or an array of dtype object, or "
                f'.view("V{width}") if the zeros are data, .astype(object) if they are not'
            )


def _astype(tensor: Tensor) -> str:
    if tensor.datatype == "BF16":
        return '"uint16"), the bits of bfloat16 (x.view("uint16"'
    return f'"{tensor.dtype.name}"'


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

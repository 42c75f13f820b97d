"""JPEG and PNG files to pixels, with the decoders that are installed.

simplejpeg decodes JPEG, or else OpenCV or Pillow does; OpenCV or Pillow decode PNG. All of them
give the same pixels, except for the last bit of some. This module evens out their differences:
whether a file is whole, and how the picture is turned.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import importlib
import io
import os
import re
import struct
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .memory import MEMORY
from .tensors import Array, Buffer, DeclarationError

CHANNELS = {"rgb": 3, "bgr": 3, "gray": 1}
"""The orders of channels, and how many there are."""

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_END = b"\xff\xd9"
_TAIL = 64
_NO_FRAMES = (0xC4, 0xC8, 0xCC)
"""Markers of a JPEG among those of frames that begin none."""
_MOST_PARTS = 1 << 16
"""Parts of a file that are read: of 8 KiB, as encoders write them, that is half a gigabyte."""

INSTALL = "pip install 'shiva-container[images]', or OpenCV or Pillow"


class PictureError(ValueError):
    """A picture that cannot be used. Only its own request is answered InvalidInput."""


@functools.cache
def _module(name: str) -> Any:
    """A module, or None if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def need(where: str, resize: bool) -> None:
    """Refuse a declaration for which no decoder is installed."""
    some = _module("cv2") or _module("PIL.Image")
    if some is None and _module("simplejpeg") is None:
        raise DeclarationError(f"{where}: no decoder of pictures is installed: {INSTALL}")
    if some is None and resize:
        raise DeclarationError(f"{where}: simplejpeg does not resize: pip install OpenCV or Pillow, too")


STEPS = (8, 4, 2)
"""How many pixels of a JPEG, along each side, its decoders make one of."""


class Header(NamedTuple):
    """What a whole file says of its picture."""

    kind: str
    height: int
    """Of the pixels as they are in the file."""
    width: int
    turned: int
    """How they are to be turned, as EXIF counts it: 1 to 8."""

    @property
    def size(self) -> tuple[int, int]:
        """The height and width of the upright picture."""
        return (self.width, self.height) if self.turned > 4 else (self.height, self.width)


def header(file: Buffer) -> Header:
    """Read the header of a JPEG or PNG file. PictureError if it is none, or its end is missing."""
    start = bytes(file[:8])
    if start.startswith(_JPEG):
        return _check_jpeg(file)
    if start == _PNG:
        return _check_png(file)
    raise PictureError(f"expected a JPEG or PNG file, got {len(file)} bytes that begin with {start.hex(' ')}")


def decode(file: Buffer, channels: str, said: Header | None = None, step: int = 1) -> Array:
    """The pixels of a JPEG or PNG file, [height, width, channels], upright as its EXIF says.

    ``said`` is its header, if it has been read. With a ``step`` of STEPS a JPEG is decoded at that
    part of its height and width, rounded up, which takes less time.
    """
    said = said or header(file)
    if said.kind == "PNG":
        pixels = _decode_any(file, channels, "PNG")
    else:
        pixels = _decode_jpeg(file, channels, said, step)
        wanted = (-(-said.height // step), -(-said.width // step))
        if step > 1 and pixels.shape[:2] != wanted:
            raise PictureError(f"JPEG: its picture is {pixels.shape[1]} x {pixels.shape[0]}, and not as it says")
    return _upright(pixels.reshape(*pixels.shape[:2], CHANNELS[channels]), said.turned)


def _decode_jpeg(file: Buffer, channels: str, said: Header, step: int) -> Array:
    simple = _module("simplejpeg")
    if simple is None:
        return _decode_any(file, channels, "JPEG", said, step)
    height, width = -(-said.height // step), -(-said.width // step)
    least = {"min_height": height, "min_width": width} if step > 1 else {}
    memory = MEMORY.take(height * width * CHANNELS[channels])
    try:
        pixels: Array = simple.decode_jpeg(
            file, colorspace=channels.upper(), min_factor=step, buffer=memory, **least
        )
    except ValueError as e:
        raise PictureError(f"JPEG: {e}") from e
    return pixels


def _decode_any(file: Buffer, channels: str, kind: str, said: Header | None = None, step: int = 1) -> Array:
    if (cv2 := _module("cv2")) is not None:
        return _decode_opencv(cv2, file, channels, kind, step)
    if (pillow := _module("PIL.Image")) is not None:
        size = (said.width // step, said.height // step) if said and step > 1 else None
        return _decode_pillow(pillow, file, channels, kind, size)
    raise PictureError(f"a {kind} file, and this container can decode JPEG only: {INSTALL}")


def _decode_opencv(cv2: Any, file: Buffer, channels: str, kind: str, step: int) -> Array:
    form = "GRAYSCALE" if channels == "gray" else "COLOR"
    flag = getattr(cv2, f"IMREAD_REDUCED_{form}_{step}" if step > 1 else f"IMREAD_{form}")
    try:
        pixels = cv2.imdecode(np.frombuffer(file, np.uint8), flag | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error as e:
        raise PictureError(f"{kind}: {e}") from e
    if pixels is None:
        raise PictureError(f"{kind}: it cannot be decoded")
    result: Array = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB) if channels == "rgb" else pixels
    return result


def _decode_pillow(pillow: Any, file: Buffer, channels: str, kind: str, size: tuple[int, int] | None) -> Array:
    try:
        with pillow.open(io.BytesIO(file), formats=[kind]) as picture:
            if size or channels == "gray":  # a JPEG's brightness is decoded as it is stored
                picture.draft("L" if channels == "gray" else None, size)
            pixels = np.asarray(picture.convert("L" if channels == "gray" else "RGB"))
    except pillow.UnidentifiedImageError as e:  # names the object that was read, by its address
        raise PictureError(f"{kind}: it cannot be decoded") from e
    except Exception as e:  # whatever its decoders raise: OSError, SyntaxError, zlib.error, ...
        raise PictureError(f"{kind}: {e}") from e
    return pixels[:, :, ::-1] if channels == "bgr" else pixels


def resized(pixels: Array, height: int, width: int, out: Array | None = None) -> Array:
    """Pixels [height, width, channels] in another size, bilinear; in ``out`` if that is given."""
    depth = pixels.shape[2]
    if (cv2 := _module("cv2")) is not None:
        # OpenCV reads and writes rows of whole pixels, wherever the next row is: the part of a
        # large picture is not copied.
        rows = pixels if pixels.strides[0] > 0 and pixels.strides[1:] == (depth, 1) else np.ascontiguousarray(pixels)
        into = out if out is not None and out.strides[1:] == (depth, 1) else None
        made = cv2.resize(rows, (width, height), into, interpolation=cv2.INTER_LINEAR)
    else:
        pillow = _module("PIL.Image")
        picture = pillow.fromarray(np.ascontiguousarray(pixels[:, :, 0] if depth == 1 else pixels))
        made = np.asarray(picture.resize((width, height), pillow.Resampling.BILINEAR))
    shaped: Array = made.reshape(height, width, depth)
    if out is None:
        return shaped
    if not np.may_share_memory(shaped, out):
        np.copyto(out, shaped)
    return out


def warped(pixels: Array, back: Array, height: int, width: int, fill: int) -> Array:
    """Pixels [height, width, channels] of places that are anywhere in others, bicubic.

    ``back`` [3, 3] is the perspective from places in them, where pixel 0 lies from 0 to 1, to
    places in ``pixels``. What lies beyond those is ``fill``, but for one or two pixels at the edge.
    """
    corners = np.array([[0, 0, 1], [width, 0, 1], [width, height, 1], [0, height, 1]]) @ back.T
    places = corners[:, :2] / corners[:, 2:]
    least = places.min(0)
    left, top = (max(0, min(int(low) - 3, size - 1)) for low, size in zip(least, pixels.shape[1::-1], strict=True))
    right, bottom = (max(0, int(high) + 4) for high in places.max(0))
    part = pixels[top : max(bottom, top + 1), left : max(right, left + 1)]
    back = np.array([[1, 0, -left], [0, 1, -top], [0, 0, 1.0]]) @ back
    depth = part.shape[2]
    if (cv2 := _module("cv2")) is not None:
        # The edge is repeated, since a pixel there would be mixed with fill otherwise.
        edged = cv2.copyMakeBorder(np.ascontiguousarray(part), 2, 2, 2, 2, cv2.BORDER_REPLICATE)
        centres = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])
        matrix = np.array([[1, 0, 1.5], [0, 1, 1.5], [0, 0, 1]]) @ back @ centres
        flags = cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP
        try:
            made = cv2.warpPerspective(edged, matrix, (width, height), flags=flags, borderValue=(fill,) * depth)
        except cv2.error as e:
            raise PictureError(f"the region cannot be cut: {e}") from e
    else:
        pillow = _module("PIL.Image")
        picture = pillow.fromarray(np.ascontiguousarray(part[:, :, 0] if depth == 1 else part))
        numbers = (back / back[2, 2]).ravel()[:8].tolist()
        kind, filter_ = pillow.Transform.PERSPECTIVE, pillow.Resampling.BICUBIC
        colour = fill if depth == 1 else (fill,) * depth
        made = np.asarray(picture.transform((width, height), kind, numbers, filter_, fillcolor=colour))
    shaped: Array = made.reshape(height, width, depth)
    return shaped


_TURNS: tuple[Callable[[Array], Array], ...] = (
    lambda a: a,
    lambda a: a[:, ::-1],
    lambda a: a[::-1, ::-1],
    lambda a: a[::-1],
    lambda a: a.swapaxes(0, 1),
    lambda a: np.rot90(a, -1),
    lambda a: a[::-1, ::-1].swapaxes(0, 1),
    lambda a: np.rot90(a),
)
"""How pixels are turned for each orientation of EXIF, 1 to 8."""


def _upright(pixels: Array, turned: int) -> Array:
    return _TURNS[turned - 1](pixels)


def _check_jpeg(file: Buffer) -> Header:
    """Find a JPEG's end, without which decoders invent the missing part, size and orientation."""
    at, turned, size = 2, 1, (0, 0)
    for _ in range(_MOST_PARTS):
        if at + 4 > len(file) or file[at] != 0xFF:
            break
        marker = file[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        (length,) = struct.unpack_from(">H", file, at + 2)
        if marker == 0xE1:
            turned = _orientation(bytes(file[at + 4 : at + 2 + length])) or turned
        elif 0xC0 <= marker <= 0xCF and marker not in _NO_FRAMES and at + 9 <= len(file):
            size = struct.unpack_from(">HH", file, at + 5)
        at += 2 + length
        if marker == 0xDA:
            # After this 0xFF begins a marker, or is escaped by 0: so any end found is the end.
            # Most files end with it; to search all of one takes a fiftieth of its decode.
            if _END not in bytes(file[max(at, len(file) - _TAIL) :]) and not re.search(_END, file[at:]):
                break
            return Header("JPEG", *size, turned)
    raise PictureError(f"JPEG: it ends after {len(file)} bytes, before the end of its picture")


def _orientation(part: bytes) -> int:
    """The orientation in a part of a JPEG that is EXIF; 0 if it has none."""
    head, tiff = part[:6], part[6:]
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if head != b"Exif\0\0" or order is None or len(tiff) < 8:
        return 0
    (at,) = struct.unpack_from(order + "I", tiff, 4)
    if not 8 <= at <= len(tiff) - 2:
        return 0
    (entries,) = struct.unpack_from(order + "H", tiff, at)
    for entry in range(at + 2, min(at + 2 + 12 * entries, len(tiff) - 11), 12):
        tag, kind, _, value = struct.unpack_from(order + "HHIH", tiff, entry)
        if tag == 0x0112:
            return int(value) if kind == 3 and 1 <= value <= 8 else 0
    return 0


def _check_png(file: Buffer) -> Header:
    """Refuse a PNG that is cut or damaged: some decoders return the part before the damage."""
    at = len(_PNG)
    width = height = 0
    for _ in range(_MOST_PARTS):
        if at + 12 > len(file):
            break
        (size,) = struct.unpack_from(">I", file, at)
        end = at + 12 + size
        if end > len(file):
            break
        kind = bytes(file[at + 4 : at + 8])
        if zlib.crc32(memoryview(file)[at + 4 : end - 4]) != struct.unpack_from(">I", file, end - 4)[0]:
            raise PictureError(f"PNG: the checksum of its part {kind!r} at byte {at} is wrong")
        if kind == b"IHDR" and size >= 8:
            width, height = struct.unpack_from(">II", file, at + 8)
        if kind == b"IEND":
            return Header("PNG", height, width, 1)
        at = end
    raise PictureError(f"PNG: it ends after {len(file)} bytes, before the end of its picture")


@functools.cache
def threads() -> concurrent.futures.ThreadPoolExecutor:
    """The threads that decode pictures, as many as there are processors."""
    return concurrent.futures.ThreadPoolExecutor(_processors(), "shiva-pictures")


def _processors() -> int:
    """The server says how many it has for this process; else all that the process may run on."""
    told = os.environ.get("SHIVA_CPUS", "")
    if told.isdigit() and int(told) > 0:
        return int(told)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def each(call: Callable[[int], None], rows: int, *, short: bool = False) -> None:
    """``call`` every row, several at once: decoders release the interpreter's lock.

    The caller's thread does its part, and waits for the others in any case: they use its arrays.
    ``short``: threads would take longer for their turns at that lock than for the rows.
    """
    if short:
        for row in range(rows):
            call(row)
        return
    left = collections.deque(range(rows))

    def work() -> None:
        try:
            while left:
                try:
                    row = left.popleft()
                except IndexError:  # another thread was faster
                    return
                call(row)
        finally:  # after an error there is no use in the other rows
            left.clear()

    helpers = [threads().submit(work) for _ in range(min(rows, _processors()) - 1)]
    try:
        work()
    finally:
        begun = [helper for helper in helpers if not helper.cancel()]
        concurrent.futures.wait(begun)
    for helper in begun:
        helper.result()

"""JPEG and PNG files to pixels, with the decoders that are installed.

simplejpeg decodes JPEG, or else OpenCV or Pillow does; OpenCV or Pillow decode PNG. All of them
give the same pixels, except for the last bit of some. This module evens out their differences:
whether a file is whole, and how the picture is turned.
"""

from __future__ import annotations

import concurrent.futures
import functools
import importlib
import io
import os
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from .tensors import Array, DeclarationError

CHANNELS = {"rgb": 3, "bgr": 3, "gray": 1}
"""The orders of channels, and how many there are."""

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
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


def decode(file: bytes, channels: str) -> Array:
    """The pixels of a JPEG or PNG file, [height, width, channels], upright as its EXIF says."""
    if file.startswith(_JPEG):
        turned = _check_jpeg(file)
        pixels = _decode_jpeg(file, channels)
    elif file.startswith(_PNG):
        _check_png(file)
        turned, pixels = 1, _decode_any(file, channels, "PNG")
    else:
        raise PictureError(f"expected a JPEG or PNG file, got {len(file)} bytes that begin with {file[:8].hex(' ')}")
    return _upright(pixels.reshape(*pixels.shape[:2], CHANNELS[channels]), turned)


def _decode_jpeg(file: bytes, channels: str) -> Array:
    simple = _module("simplejpeg")
    if simple is None:
        return _decode_any(file, channels, "JPEG")
    try:
        pixels: Array = simple.decode_jpeg(file, colorspace=channels.upper())
    except ValueError as e:
        raise PictureError(f"JPEG: {e}") from e
    return pixels


def _decode_any(file: bytes, channels: str, kind: str) -> Array:
    if (cv2 := _module("cv2")) is not None:
        return _decode_opencv(cv2, file, channels, kind)
    if (pillow := _module("PIL.Image")) is not None:
        return _decode_pillow(pillow, file, channels, kind)
    raise PictureError(f"a {kind} file, and this container can decode JPEG only: {INSTALL}")


def _decode_opencv(cv2: Any, file: bytes, channels: str, kind: str) -> Array:
    flag = cv2.IMREAD_GRAYSCALE if channels == "gray" else cv2.IMREAD_COLOR
    try:
        pixels = cv2.imdecode(np.frombuffer(file, np.uint8), flag | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error as e:
        raise PictureError(f"{kind}: {e}") from e
    if pixels is None:
        raise PictureError(f"{kind}: it cannot be decoded")
    result: Array = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB) if channels == "rgb" else pixels
    return result


def _decode_pillow(pillow: Any, file: bytes, channels: str, kind: str) -> Array:
    try:
        with pillow.open(io.BytesIO(file), formats=[kind]) as picture:
            if channels == "gray":
                picture.draft("L", None)  # decode a JPEG's brightness as it is stored
            pixels = np.asarray(picture.convert("L" if channels == "gray" else "RGB"))
    except Exception as e:  # whatever its decoders raise: OSError, SyntaxError, zlib.error, ...
        raise PictureError(f"{kind}: {e}") from e
    return pixels[:, :, ::-1] if channels == "bgr" else pixels


def resized(pixels: Array, height: int, width: int) -> Array:
    """Pixels [height, width, channels] in another size, bilinear."""
    depth = pixels.shape[2]
    if (cv2 := _module("cv2")) is not None:
        made = cv2.resize(np.ascontiguousarray(pixels), (width, height), interpolation=cv2.INTER_LINEAR)
    else:
        pillow = _module("PIL.Image")
        picture = pillow.fromarray(np.ascontiguousarray(pixels[:, :, 0] if depth == 1 else pixels))
        made = np.asarray(picture.resize((width, height), pillow.Resampling.BILINEAR))
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


def _check_jpeg(file: bytes) -> int:
    """Find a JPEG's end, without which decoders invent the missing part, and its orientation."""
    at, turned = 2, 1
    for _ in range(_MOST_PARTS):
        if at + 4 > len(file) or file[at] != 0xFF:
            break
        marker = file[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        (size,) = struct.unpack_from(">H", file, at + 2)
        if marker == 0xE1:
            turned = _orientation(file[at + 4 : at + 2 + size]) or turned
        at += 2 + size
        if marker == 0xDA:
            # After this 0xFF begins a marker, or is escaped by 0: so the first end found is the
            # end.
            if file.find(b"\xff\xd9", at) < 0:
                break
            return turned
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


def _check_png(file: bytes) -> None:
    """Refuse a PNG that is cut or damaged: some decoders return the part before the damage."""
    at = len(_PNG)
    for _ in range(_MOST_PARTS):
        if at + 12 > len(file):
            break
        (size,) = struct.unpack_from(">I", file, at)
        end = at + 12 + size
        if end > len(file):
            break
        kind = file[at + 4 : at + 8]
        if zlib.crc32(memoryview(file)[at + 4 : end - 4]) != struct.unpack_from(">I", file, end - 4)[0]:
            raise PictureError(f"PNG: the checksum of its part {kind!r} at byte {at} is wrong")
        if kind == b"IEND":
            return
        at = end
    raise PictureError(f"PNG: it ends after {len(file)} bytes, before the end of its picture")


@functools.cache
def _threads() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(_processors(), "shiva-pictures")


def _processors() -> int:
    """The server says how many it has for this process; else all that the process may run on."""
    told = os.environ.get("SHIVA_CPUS", "")
    if told.isdigit() and int(told) > 0:
        return int(told)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def each(call: Callable[[int], None], rows: int) -> None:
    """``call`` every row, several at once: decoders release the interpreter's lock."""
    if rows == 1:
        call(0)
        return
    for done in [_threads().submit(call, row) for row in range(rows)]:
        done.result()

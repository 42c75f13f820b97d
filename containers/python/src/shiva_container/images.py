"""Inputs that are pictures: their declaration, and how each is made pixels for a function.

pictures.py decodes the files.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .pictures import CHANNELS, PictureError, decode, each, need, resized
from .tensors import Array, DeclarationError, Tensor

RESIZES = ("stretch", "letterbox", "crop")
_MAX_SIDE = 65535


@dataclass(frozen=True)
class Fit:
    """How a picture was made the pixels that a function gets, and the way back.

    The picture is upright: already turned as its EXIF says.
    """

    height: int
    """Of the picture that the client sent."""
    width: int
    scale_y: float = 1.0
    """Pixels of the function for one pixel of the picture."""
    scale_x: float = 1.0
    top: float = 0
    """Rows of the bar above the picture, or less than 0: of what was cut off, and"""
    left: float = 0
    """columns of the bar beside it."""

    def points(self, points: npt.ArrayLike, *, clip: bool = True) -> Array:
        """The places in the picture of ``points``, [..., 2] as x and y in the function's pixels.

        Those beyond its edges are moved to them if ``clip``.
        """
        given = np.asarray(points)
        floats = given if given.dtype.kind == "f" else given.astype(np.float64)
        moved = (floats - (self.left, self.top)) / (self.scale_x, self.scale_y)
        if clip:
            moved = np.clip(moved, 0, (self.width, self.height))
        return moved.astype(floats.dtype)

    def boxes(self, boxes: npt.ArrayLike) -> Array:
        """The same for ``boxes``, [..., 4] as x_min, y_min, x_max and y_max."""
        given = np.asarray(boxes)
        return self.points(given.reshape(*given.shape[:-1], 2, 2)).reshape(given.shape)


class Image(Tensor):
    """The declaration of an input whose rows are pictures.

    Clients send JPEG or PNG files (as BYTES, or one as a UINT8 array of its bytes), which are
    decoded in threads before the function is called, or pixels as for ``Tensor(name, "UINT8", [-1,
    height, width, 3])``. The function gets pixels in any case.

    ``height``, ``width``
        size of the pixels that the function gets. A model with ``batched=False`` may leave them
        out: it gets each picture in its own size.
    ``channels``
        "rgb", "bgr" or "gray": the channels of decoded files, and of clients' pixels.
    ``layout``
        "nhwc" or "nchw": the order of the dimensions, for the function and for clients' pixels.
    ``resize``
        "stretch", "letterbox" or "crop" make pictures of any size ``height`` x ``width``, bilinear;
        letterbox keeps their proportions, and fills the bars beside them with ``fill``; crop keeps
        them, too, and the middle of the picture only. The
        function finds in ``batch.fits[name][row]``, or in ``request.fits[name]`` if it is called
        for each row, the :class:`Fit` that maps boxes back to the client's picture. Without
        ``resize`` a picture of another size is refused.
    ``fill``
        the value of all channels in the bars.
    """

    channels: str
    layout: str
    resize: str
    fill: int
    height: int | None
    width: int | None

    def __init__(
        self,
        name: str,
        height: int | None = None,
        width: int | None = None,
        *,
        channels: str = "rgb",
        layout: str = "nhwc",
        resize: str = "",
        fill: int = 114,
        optional: bool = False,
    ) -> None:
        where = f'image "{name}"'
        for key, value, known in (
            ("channels", channels, tuple(CHANNELS)),
            ("layout", layout, ("nhwc", "nchw")),
            ("resize", resize, ("", *RESIZES)),
        ):
            if value not in known:
                raise DeclarationError(f"{where}: {key} is {value!r}, expected one of {', '.join(map(repr, known))}")
        for key, side in (("height", height), ("width", width)):
            if side is not None and (type(side) is not int or not 0 < side <= _MAX_SIDE):
                raise DeclarationError(f"{where}: {key} is {side!r}, expected 1 to {_MAX_SIDE}")
        if resize and (height is None or width is None):
            raise DeclarationError(f'{where}: resize="{resize}" needs a height and a width to resize to')
        if type(fill) is not int or not 0 <= fill <= 255:
            raise DeclarationError(f"{where}: fill is {fill!r}, expected 0 to 255")
        need(where, bool(resize))
        own = {"channels": channels, "layout": layout, "resize": resize, "fill": fill, "height": height, "width": width}
        for attribute, given in own.items():
            object.__setattr__(self, attribute, given)
        sides = [-1, -1] if resize else [height or -1, width or -1]
        row = [*sides, CHANNELS[channels]] if layout == "nhwc" else [CHANNELS[channels], *sides]
        super().__init__(name, "UINT8", [-1, *row], optional=optional, format=f"FORMAT_{layout.upper()}")

    def alone(self) -> Image:
        """The same input for a model that is not batched: without a dimension for rows."""
        one = copy.copy(self)
        object.__setattr__(one, "shape", tuple(self.shape[1:]))
        return one

    def json(self) -> dict[str, object]:
        """The declaration in ``hello``."""
        head = super().json()
        image: dict[str, object] = {"channels": self.channels}
        if self.resize:
            image |= {"resize": self.resize, "height": self.height, "width": self.width}
        head["image"] = image
        return head

    def decode(self, file: bytes) -> tuple[Array, Fit]:
        """The pixels for the function from a JPEG or PNG file, without a dimension for rows.

        A file that cannot be decoded, or has another size, is a :class:`PictureError`.
        """
        return self.fit(self._laid(decode(file, self.channels)))

    def fit(self, pixels: Array) -> tuple[Array, Fit]:
        """The same for pixels of one picture, in the declared layout."""
        picture = pixels.transpose(1, 2, 0) if self.layout == "nchw" else pixels
        height, width = picture.shape[:2]
        fit = Fit(height, width)
        if not self.resize:
            if (self.height or height, self.width or width) != (height, width):
                raise PictureError(
                    f"a picture of {width} x {height} pixels, expected {self.width or 'any'} x {self.height or 'any'}"
                )
            return pixels, fit
        assert self.height is not None
        assert self.width is not None
        if (height, width) == (self.height, self.width):
            return pixels, fit
        if self.resize == "stretch":
            fit = Fit(height, width, self.height / height, self.width / width)
            return self._laid(resized(picture, self.height, self.width)), fit
        if self.resize == "crop":
            return self._middle(picture)
        scale = min(self.height / height, self.width / width)
        inner_height = max(1, min(self.height, round(height * scale)))
        inner_width = max(1, min(self.width, round(width * scale)))
        top, left = (self.height - inner_height) // 2, (self.width - inner_width) // 2
        boxed: Array = np.full((self.height, self.width, picture.shape[2]), self.fill, np.uint8)
        boxed[top : top + inner_height, left : left + inner_width] = resized(picture, inner_height, inner_width)
        return self._laid(boxed), Fit(height, width, inner_height / height, inner_width / width, top, left)

    def _middle(self, picture: Array) -> tuple[Array, Fit]:
        """The largest middle part in the declared proportions."""
        assert self.height is not None
        assert self.width is not None
        height, width = picture.shape[:2]
        scale = max(self.height / height, self.width / width)
        inner_height = max(1, min(height, round(self.height / scale)))
        inner_width = max(1, min(width, round(self.width / scale)))
        top, left = (height - inner_height) // 2, (width - inner_width) // 2
        part = picture[top : top + inner_height, left : left + inner_width]
        scale_y, scale_x = self.height / inner_height, self.width / inner_width
        fit = Fit(height, width, scale_y, scale_x, -top * scale_y, -left * scale_x)
        return self._laid(resized(part, self.height, self.width)), fit

    def _laid(self, picture: Array) -> Array:
        """Pixels [height, width, channels] in the declared layout."""
        return picture.transpose(2, 0, 1) if self.layout == "nchw" else picture

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of the function's pixels for one picture; 0 for a side of any size."""
        sides = (self.height or 0, self.width or 0)
        depth = CHANNELS[self.channels]
        return (*sides, depth) if self.layout == "nhwc" else (depth, *sides)

    def accepts_file(self, shape: tuple[int, ...], rows: int | None) -> bool:
        """Whether BYTES of a shape are a file for each of ``rows``; None: the model has no rows."""
        return shape == (() if rows is None else (rows,))

    def __str__(self) -> str:
        to = f", {self.resize} to {self.width} x {self.height}" if self.resize else ""
        return f"{super().__str__()}, {self.channels} pictures{to}"


Fits = dict[str, tuple[Fit, ...]]
"""The fit of each row of each input of pictures, by the input's name."""

Faults = dict[int, PictureError]
"""Rows whose pictures cannot be used."""


def see(image: Image, array: Array, batched: bool, fits: Fits, faults: Faults) -> Array:
    """The pixels of an input, from the files or pixels that arrived for it.

    A row that cannot be decoded is a fault, and black.
    """
    files = array.dtype == object
    if not files and not image.resize:
        height, width = (array.shape[-3:-1] if image.layout == "nhwc" else array.shape[-2:])
        fits[image.name] = (Fit(height, width),) * (len(array) if batched else 1)
        return array
    rows: list[Any] = list(array) if batched else [array.item() if files else array]
    made: list[Array | None] = [None] * len(rows)
    if batched:
        whole = np.empty((len(rows), *image.sizes), np.uint8)
        made = list(whole)
    found = [Fit(0, 0)] * len(rows)

    def one(row: int) -> None:
        try:
            pixels, found[row] = image.decode(rows[row]) if files else image.fit(rows[row])
        except PictureError as e:
            faults[row] = e
            pixels = np.zeros([size or 1 for size in image.sizes], np.uint8)
        target = made[row]
        if target is None:
            made[row] = np.ascontiguousarray(pixels)
        else:
            np.copyto(target, pixels)

    each(one, len(rows))
    rows.clear()  # a thread may still refer to ``one``, and the inputs belong to the server again
    fits[image.name] = tuple(found)
    if batched:
        return whole
    only = made[0]
    assert only is not None
    return only

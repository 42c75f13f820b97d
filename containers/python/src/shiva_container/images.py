"""Inputs that are pictures: their declaration, and how each is made pixels for a function.

pictures.py decodes the files.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .kept import KEPT
from .memory import MEMORY
from .opened import Pictures
from .pictures import CHANNELS, STEPS, Header, PictureError, decode, each, header, need, resized
from .regions import SAME, Cut, Picture, Place, checked, cut, moved, placed, upright
from .tensors import Array, Buffer, DeclarationError, Tensor

RESIZES = ("stretch", "letterbox", "crop")
_MAX_SIDE = 65535
_MOST_MARGIN = 16
_SHORT = 64 << 10
"""Bytes of a region that is cut in less time than another thread takes to wake up and end."""


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
    back: tuple[tuple[float, ...], ...] = ()
    """Of a region that is turned or seen from the side: the perspective, three rows of three
    numbers, from its pixels to the picture's. The numbers above are those of its pixels then, but
    for ``height`` and ``width``. () for other regions, which are whole pictures of which all but
    the region was cut off."""

    def points(self, points: npt.ArrayLike, *, clip: bool = True) -> Array:
        """The places in the picture of ``points``, [..., 2] as x and y in the function's pixels.

        Those beyond its edges are moved to them if ``clip``.
        """
        given = np.asarray(points)
        floats = given if given.dtype.kind == "f" else given.astype(np.float64)
        found = (floats - (self.left, self.top)) / (self.scale_x, self.scale_y)
        if self.back:
            found = moved(self.back, found)
        if clip:
            found = np.clip(found, 0, (self.width, self.height))
        return found.astype(floats.dtype)

    def boxes(self, boxes: npt.ArrayLike) -> Array:
        """The same for ``boxes``, [..., 4] as x_min, y_min, x_max and y_max.

        The box of a box that is turned is the upright one around it.
        """
        given = np.asarray(boxes)
        if not self.back:
            return self.points(given.reshape(*given.shape[:-1], 2, 2)).reshape(given.shape)
        corners = self.points(given[..., [[0, 1], [2, 1], [2, 3], [0, 3]]])
        return np.concatenate([corners.min(axis=-2), corners.max(axis=-2)], axis=-1)

    def of(self, region: Cut, picture: Picture) -> Fit:
        """The fit of the whole picture, if this is that of a region which was cut out of it."""
        if not upright(region.back):
            scale, at = (self.scale_y, self.scale_x), (self.top, self.left)
            return Fit(picture.height, picture.width, *scale, *at, region.back)
        (step_x, _, left), (_, step_y, top), _ = region.back
        scale_y, scale_x = self.scale_y / step_y, self.scale_x / step_x
        return Fit(
            picture.height, picture.width, scale_y, scale_x, self.top - top * scale_y, self.left - left * scale_x
        )


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
        them, too, and the middle of the picture only. A JPEG of twice that size or more is decoded
        at a half, a quarter or an eighth of its own before. The function finds in
        ``batch.fits[name][row]``, or in ``request.fits[name]`` if it is called for each row, the
        :class:`Fit` that maps boxes back to the client's picture. Without ``resize`` a picture of
        another size is refused.
    ``fill``
        the value of all channels in the bars.
    ``regions``
        clients may send one picture with regions of it, boxes or corners: each is a row, which the
        function gets as a picture, cut, turned and resized; its :class:`Fit` maps boxes back to the
        whole picture. Without ``height`` and ``width`` a batched function gets a list with a
        picture for each row, in their own sizes. ``resize`` is needed with them.
    ``margin``
        how much wider each region is cut on each of its sides, in parts of its width and height.
        Boxes end at the edge of the picture, corners go on in ``fill``.
    ``context``
        each region is cut wider or higher, to the proportions of ``height`` and ``width``, so that
        the function sees what is beside it in place of bars, and nothing is distorted. ``fill`` is
        where the picture ends.
    """

    channels: str
    layout: str
    resize: str
    fill: int
    height: int | None
    width: int | None
    regions: bool
    margin: float
    context: bool

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
        regions: bool = False,
        margin: float = 0.0,
        context: bool = False,
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
        if (margin or context) and not regions:
            raise DeclarationError(f"{where}: margin and context are for regions=True")
        if not isinstance(margin, int | float) or not 0 <= margin <= _MOST_MARGIN:
            raise DeclarationError(f"{where}: margin is {margin!r}, expected 0 to {_MOST_MARGIN}")
        if regions and not resize and (height, width) != (None, None):
            raise DeclarationError(f"{where}: regions have any size: say resize, or leave out height and width")
        if context and not resize:
            raise DeclarationError(f"{where}: context needs a height, a width and resize")
        need(where, bool(resize or regions))
        own = {"channels": channels, "layout": layout, "resize": resize, "fill": fill, "height": height, "width": width}
        own |= {"regions": bool(regions), "margin": float(margin), "context": bool(context)}
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

    def check(self, where: str, inputs: Collection[str], *, batched: bool, per_row: bool) -> None:
        """Refuse what does not go with the model's other inputs, or with how it is called."""
        where = f"{where}: input {self}"
        if self.regions and not batched:
            raise DeclarationError(f"{where}: each region is a row: say batched=True")
        if batched and 0 in self.sizes and not (self.regions or per_row):
            raise DeclarationError(
                f"{where}: the pictures of a batch have one size: give height and width (and "
                "resize for clients whose pictures have others), or say regions=True, per_row=True or batched=False"
            )
        if self.regions and f"{self.name}_regions" in inputs:
            raise DeclarationError(f'{where}: clients send its regions as "{self.name}_regions": name yours otherwise')

    def json(self) -> dict[str, object]:
        """The declaration in ``hello``."""
        head = super().json()
        image: dict[str, object] = {"channels": self.channels}
        if self.resize:
            image |= {"resize": self.resize, "height": self.height, "width": self.width}
        if self.regions:
            image["regions"] = True
        head["image"] = image
        return head

    def decode(
        self, file: Buffer, region: npt.ArrayLike | None = None, out: Array | None = None
    ) -> tuple[Array, Fit]:
        """The pixels for the function from a JPEG or PNG file, without a dimension for rows.

        ``region`` is a box, [4], or corners, [4, 2], in parts of the upright picture. A file that
        cannot be decoded, or has another size, is a :class:`PictureError`. Pixels that have to be
        computed are put into ``out``, if that is given.
        """
        if region is not None:
            return self.cut(self.opened(file, [region]), region, out)
        said = header(file)
        return self._fitted(self._decoded(file, said, self._step([said.size])), out)

    def _shared(self, file: Buffer, pictures: Pictures, i: int, out: Array | None = None) -> tuple[Array, Fit]:
        """The same for picture ``i`` of those that other models look at, too."""
        said = header(file)
        step = self._step([said.size])
        if (picture := pictures.look(i, said, self.channels, step)) is not None:
            pixels, fit = self._fitted(picture, out)
            # Without a size nothing was computed, and the function may keep what it gets.
            return pixels.copy() if 0 in self.sizes else pixels, fit
        picture = self._decoded(file, said, step)
        pictures.hand_on(i, picture)
        return self._fitted(picture, out)

    def _fitted(self, picture: Picture, out: Array | None) -> tuple[Array, Fit]:
        """The pixels for the function from a whole picture."""
        pixels, fit = self.fit(self._laid(picture.pixels), out=out)
        return pixels, fit if picture.step == 1 else fit.of(Cut(picture.pixels, picture.back(SAME)), picture)

    def fit(
        self, pixels: Array, region: npt.ArrayLike | None = None, out: Array | None = None
    ) -> tuple[Array, Fit]:
        """The same for pixels of one picture, in the declared layout."""
        picture = self._unlaid(pixels)
        height, width = picture.shape[:2]
        if region is not None:
            return self.cut(Picture(picture, height, width), region, out)
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
        made = np.empty((self.height, self.width, picture.shape[2]), np.uint8) if out is None else self._unlaid(out)
        if self.resize == "stretch":
            fit = Fit(height, width, self.height / height, self.width / width)
            resized(picture, self.height, self.width, made)
        elif self.resize == "crop":
            fit = self._middle(picture, made)
        else:
            fit = self._boxed(picture, made)
        return self._laid(made), fit

    def _boxed(self, picture: Array, made: Array) -> Fit:
        """Put a whole picture, and the bars beside it, into the declared size."""
        assert self.height is not None
        assert self.width is not None
        height, width = picture.shape[:2]
        scale = min(self.height / height, self.width / width)
        inner_height = max(1, min(self.height, round(height * scale)))
        inner_width = max(1, min(self.width, round(width * scale)))
        top, left = (self.height - inner_height) // 2, (self.width - inner_width) // 2
        bottom, right = top + inner_height, left + inner_width
        made[:top] = made[bottom:] = made[top:bottom, :left] = made[top:bottom, right:] = self.fill
        resized(picture, inner_height, inner_width, made[top:bottom, left:right])
        return Fit(height, width, inner_height / height, inner_width / width, top, left)

    def cut(
        self, picture: Picture, region: npt.ArrayLike | Place, out: Array | None = None
    ) -> tuple[Array, Fit]:
        """The pixels of a region of a picture. PictureError if it is none."""
        part = cut(picture, self._placed(region, picture.height, picture.width), self.fill)
        pixels, fit = self.fit(self._laid(part.pixels), out=out)
        return pixels, fit.of(part, picture)

    def opened(
        self, file: Buffer, wanted: Sequence[npt.ArrayLike | Place], before: Picture | None = None
    ) -> Picture:
        """The picture in a file, decoded for some regions of it.

        A JPEG of which all regions are made smaller is decoded smaller at once, with no less pixels
        than the function gets. ``before`` is what it was decoded to for others: if that is too
        small, it is decoded whole, so that no picture is decoded more than twice.
        """
        if before is not None:
            enough = before.step <= self._step(self._sides(wanted, before.height, before.width))
            return before if enough else self.opened(file, ())
        said = header(file)
        picture = self._decoded(file, said, self._step(self._sides(wanted, *said.size)))
        picture.pixels.flags.writeable = False
        return picture

    def _decoded(self, file: Buffer, said: Header, step: int) -> Picture:
        """The picture in a file, a JPEG with one pixel for ``step`` of it."""
        step = step if said.kind == "JPEG" else 1
        pixels = decode(file, self.channels, said, step)
        height, width = said.size if step > 1 else pixels.shape[:2]
        return Picture(pixels, height, width, step)

    def _sides(
        self, wanted: Sequence[npt.ArrayLike | Place], height: int, width: int
    ) -> Iterator[tuple[float, float]]:
        """The heights and widths of regions, without those that fail alone."""
        for region in wanted:
            with contextlib.suppress(PictureError):
                yield self._placed(region, height, width).sides

    def _step(self, sides: Iterable[tuple[float, float]]) -> int:
        """How many pixels of a picture may be decoded to one for parts of these sides."""
        if not (self.resize and self.height and self.width):
            return 1
        least = max if self.resize == "letterbox" else min
        scale = min((least(high / self.height, wide / self.width) for high, wide in sides), default=1)
        return next((step for step in STEPS if step <= scale), 1)

    def _placed(self, region: npt.ArrayLike | Place, height: int, width: int) -> Place:
        if isinstance(region, Place):
            return region
        proportions = self.height / self.width if self.context and self.height and self.width else None
        return placed(checked(region), height, width, self.margin, proportions)

    def _middle(self, picture: Array, made: Array) -> Fit:
        """Put the largest middle part in the declared proportions into the declared size."""
        assert self.height is not None
        assert self.width is not None
        height, width = picture.shape[:2]
        scale = max(self.height / height, self.width / width)
        inner_height = max(1, min(height, round(self.height / scale)))
        inner_width = max(1, min(width, round(self.width / scale)))
        top, left = (height - inner_height) // 2, (width - inner_width) // 2
        part = picture[top : top + inner_height, left : left + inner_width]
        scale_y, scale_x = self.height / inner_height, self.width / inner_width
        resized(part, self.height, self.width, made)
        return Fit(height, width, scale_y, scale_x, -top * scale_y, -left * scale_x)

    def _laid(self, picture: Array) -> Array:
        """Pixels [height, width, channels] in the declared layout."""
        return picture.transpose(2, 0, 1) if self.layout == "nchw" else picture

    def _unlaid(self, pixels: Array) -> Array:
        """Pixels in the declared layout as [height, width, channels]."""
        return pixels.transpose(1, 2, 0) if self.layout == "nchw" else pixels

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
        parts = ", and regions of them" if self.regions else ""
        return f"{super().__str__()}, {self.channels} pictures{to}{parts}"


@dataclass(frozen=True)
class Regions:
    """An input that is regions of pictures, as it arrives: a row for each."""

    pictures: Sequence[Array | Buffer]
    """Files, or pixels in the declared layout."""
    of: Sequence[int]
    """The picture of each row."""
    corners: Array
    """[rows, 4, 2]"""
    keys: Sequence[Hashable] = ()
    """By which the pictures are known when they come again; (): they do not."""

    @classmethod
    def joined(cls, parts: Sequence[Regions]) -> Regions:
        """The rows of several, one after the other."""
        of: list[int] = []
        pictures: list[Array | Buffer] = []
        for part in parts:
            of += [len(pictures) + i for i in part.of]
            pictures += part.pictures
        return cls(pictures, of, np.concatenate([part.corners for part in parts]), [k for p in parts for k in p.keys])


Given = Array | Regions | None
"""An input as it arrives; None if it was left out."""
Seen = Array | list[Array] | None
"""An input as the function gets it: a list, if it is pictures of different sizes."""


Fits = dict[str, tuple[Fit, ...]]
"""The fit of each row of each input of pictures, by the input's name."""

Faults = dict[int, PictureError]
"""Rows whose pictures cannot be used."""

Inputs = tuple[Sequence[Given] | Sequence[Seen], Faults]
"""What a function gets for a batch, and the rows without a picture, which have failed."""


def see(
    image: Image,
    given: Array | Regions,
    batched: bool,
    fits: Fits,
    faults: Faults,
    pictures: Pictures | None = None,
) -> Array | list[Array]:
    """The pixels of an input, from the files, pixels or regions that arrived for it.

    A row that cannot be decoded or cut is a fault, and black. ``pictures`` are those that other
    models look at, too.
    """
    if isinstance(given, Regions):
        return _cut(image, given, fits, faults, pictures)
    files = given.dtype == object
    if not files and not image.resize:
        height, width = (given.shape[-3:-1] if image.layout == "nhwc" else given.shape[-2:])
        fits[image.name] = (Fit(height, width),) * (len(given) if batched else 1)
        return list(given) if batched and 0 in image.sizes else given
    rows: list[Any] = list(given) if batched else [given.item() if files else given]
    if files and pictures is not None:
        made = _made(image, len(rows), lambda row, out: image._shared(rows[row], pictures, row, out), fits, faults)
    else:
        make = image.decode if files else image.fit
        made = _made(image, len(rows), lambda row, out: make(rows[row], out=out), fits, faults)
    rows.clear()  # a thread may still refer to the function, and the inputs are the server's again
    return made if batched else made[0]


def _cut(
    image: Image, given: Regions, fits: Fits, faults: Faults, shared: Pictures | None
) -> Array | list[Array]:
    """The pixels of regions. Each picture is decoded once for all of its rows."""
    wanted: list[list[int]] = [[] for _ in given.pictures]
    for row, i in enumerate(given.of):
        wanted[i].append(row)
    pictures: list[Picture | str] = [""] * len(wanted)
    regions: list[Array | Place] = list(given.corners)

    def place(i: int, height: int, width: int) -> list[Place]:
        """Place the regions of a picture, once for all uses. Those that fail stay as they are."""
        for row in wanted[i]:
            with contextlib.suppress(PictureError):
                regions[row] = image._placed(regions[row], height, width)
        return [region for row in wanted[i] if isinstance(region := regions[row], Place)]

    def looked(i: int, file: Buffer) -> bool:
        """Whether a file need not be decoded: others have done that, or it is none."""
        if shared is None:
            return False
        try:
            said = header(file)
            step = image._step(one.sides for one in place(i, *said.size))
            pictures[i] = shared.look(i, said, image.channels, step) or ""
        except PictureError as e:
            pictures[i] = str(e)
        return pictures[i] != ""

    def open_(i: int, file: Buffer) -> None:
        try:
            places = place(i, *header(file).size)
            pictures[i] = (
                KEPT.get(given.keys[i], lambda before: image.opened(file, places, before))
                if given.keys
                else image.opened(file, places)
            )
        except PictureError as e:
            pictures[i] = str(e)

    def one(row: int, out: Array | None) -> tuple[Array, Fit]:
        picture = pictures[given.of[row]]
        if isinstance(picture, str):
            raise PictureError(picture)
        return image.cut(picture, regions[row], out)

    files: list[tuple[int, Buffer]] = []
    for i, file in enumerate(given.pictures):
        if isinstance(file, np.ndarray):
            pixels = image._unlaid(file)
            pictures[i] = Picture(pixels, *pixels.shape[:2])
        elif wanted[i] and not looked(i, file):
            files.append((i, file))
    each(lambda n: open_(*files[n]), len(files))
    return _made(image, len(given.of), one, fits, faults, own=True)


def _made(
    image: Image,
    rows: int,
    make: Callable[[int, Array | None], tuple[Array, Fit]],
    fits: Fits,
    faults: Faults,
    *,
    own: bool = False,
) -> Array | list[Array]:
    """The pixels of each row: in one array, or in a list if they have any size.

    ``make`` puts those of the array where they belong, unless it has them already. ``own``: those
    of the list refer to no memory of the rows' pictures.
    """
    whole: Array | None = None
    made: list[Array] = [np.empty(0, np.uint8)] * rows
    if 0 not in image.sizes:
        size = rows * math.prod(image.sizes)
        whole = np.ndarray((rows, *image.sizes), np.uint8, MEMORY.take(size))
        made = list(whole)
    found = [Fit(0, 0)] * rows

    def one(row: int) -> None:
        try:
            pixels, found[row] = make(row, None if whole is None else made[row])
        except PictureError as e:
            faults[row] = PictureError(str(e))  # no traceback: its frames refer to the inputs
            pixels = np.zeros([size or 1 for size in image.sizes], np.uint8)
        if whole is None:
            made[row] = np.array(pixels, order="C") if own else np.ascontiguousarray(pixels)
        elif not np.may_share_memory(pixels, made[row]):
            np.copyto(made[row], pixels)

    each(one, rows, short=own and 0 < math.prod(image.sizes) <= _SHORT)
    fits[image.name] = tuple(found)
    return made if whole is None else whole

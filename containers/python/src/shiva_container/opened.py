"""Pictures that several models look at: what one container has decoded is handed on to others.

It goes through memory shared with the server: "Opened pictures" of containers/DESIGN.md.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .arena import MIN_SHARED, Arena
from .pictures import CHANNELS, Header
from .regions import Picture
from .tensors import Buffer
from .wire import Opened


class Pictures:
    """The pictures of one input of a batch, by their index in it. Any thread may use it."""

    def __init__(
        self, arena: Arena, batch_id: bytes, wanted: Mapping[int, Opened], given: Mapping[int, Opened]
    ) -> None:
        self._arena = arena
        self._batch_id = batch_id
        self._wanted = wanted
        self._given = given
        self.handed: dict[int, Opened] = {}
        """What was handed on to the server."""
        self.looked: dict[int, Opened] = {}
        """What was handed on by it, with the step that would have done."""

    def look(self, i: int, said: Header, channels: str, step: int) -> Picture | None:
        """The picture as another container has decoded it, until the batch is answered.

        None if it has not, or if more than ``step`` of its pixels have become one.
        """
        given = self._given.get(i)
        if given is None:
            return None
        self.looked[i] = Opened(i, step)
        height, width = said.size
        shape = (-(-height // max(given.step, 1)), -(-width // max(given.step, 1)), CHANNELS[channels])
        pixels: Buffer = self._arena.pieces(given.at)[0]
        if not 1 <= given.step <= step or len(pixels) != np.prod(shape, dtype=np.int64):
            return None
        return Picture(np.ndarray(shape, np.uint8, pixels), height, width, given.step)

    def hand_on(self, i: int, picture: Picture) -> None:
        """Let the server have what was decoded, if it wants that and has memory for it."""
        wanted = self._wanted.get(i)
        size = picture.pixels.nbytes
        if wanted is None or picture.step > wanted.step or size < MIN_SHARED or any(picture.origin):
            return
        region = self._arena.output(self._batch_id, size)
        if region is not None:
            np.copyto(region.data.reshape(picture.pixels.shape), picture.pixels)
        self.handed[i] = Opened(i, picture.step, region.at if region else (), 0 if region else size)

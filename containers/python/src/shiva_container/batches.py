"""A model's batches on their way in and out: frames to arrays, arrays to frames.

Headers repeat: batches of one model with equally many rows differ only in their id, timeout, places
in shared memory, and traces. So a header is parsed once, and then looked up by its bytes without
these. The header of an answer is written once for each shape of its outputs, except for their
places.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from . import wire
from .arena import MIN_SHARED, Arena, Loan
from .feedback import Feedback
from .images import Given, Image, Regions
from .models import Batch, Model, Request
from .opened import Pictures
from .session import Delivery, Lesson
from .tensors import Array, Buffer, TensorError, decode, elements, encode

log = logging.getLogger("shiva_container")

_REMEMBERED = 256
"""How many headers in each direction are remembered for a model, and"""
_LONGEST = 1024
"""the most bytes that each may have."""
_TIMEOUT = re.compile(rb',"timeout_ms":((?:0|[1-9][0-9]*)(?:\.[0-9]+)?)(?=[,}])')
_AT = b',"at":['
_TRACES = b',"traces":['
_TRUSTED_CALLS = 8
"""How many calls in a row must release their inputs before a function gets them uncopied."""

class _Input(NamedTuple):
    """One declared input in a batch: its frame, and its description; none if it was left out."""

    name: str
    frame: int
    datatype: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    """The dtype of elements that can be used in place; None for elements that must be decoded."""
    size: int
    place: int
    """Which of the header's places in shared memory belongs to it, -1 if it is in its frame."""


class _Cuts(NamedTuple):
    """An input whose rows are regions of pictures."""

    pictures: _Input
    corners: _Input
    of: list[int]
    """The picture of each row."""
    ids: list[int]


class _Plan(NamedTuple):
    """The meaning of a header."""

    rows: int
    frames: int
    places: int
    inputs: list[_Input | _Cuts | None]
    requests: tuple[Request, ...]
    timeout: float | None
    traces: tuple[str, ...]
    batch: Batch | None
    """The batch for functions that see nothing of it: they share one."""
    open: Mapping[str, Mapping[int, wire.Opened]]
    """The pictures of inputs that are to be handed on, and"""
    opened: Mapping[str, Mapping[int, wire.Opened]]
    """those that others have handed on."""


_Places = Sequence[tuple[int, ...]]
"""The places of the tensors of a header that lie in shared memory, in order."""


class Batches:
    """The batches of one model. Any thread may use it: plans that two threads make are equal."""

    def __init__(self, model: Model[..., Any]) -> None:
        self._model = model
        self._plans: dict[bytes, _Plan] = {}
        self._headers: dict[tuple[tuple[int, ...], ...], tuple[bytes, list[bytes]]] = {}
        """The header by the shapes of the outputs, and the same header in pieces."""
        self._trusted = 0
        self._echoes = False
        """Whether an output of the last batch was one of its inputs."""

    def read(self, delivery: Delivery, arena: Arena | None = None) -> tuple[list[Given], Batch, list[Loan]]:
        """The arrays of a batch in declared order, checked against the declaration.

        An optional input that the batch lacks is None.
        """
        header, frames = bytes(delivery.header), delivery.frames
        followed: Mapping[int, str] = {}
        if header.endswith(b"]}") and _TRACES in header:
            header, followed, count = _followed(header)
        known = header
        if timed := _TIMEOUT.search(header):
            start, end = timed.span(1)
            known = header[:start] + header[end:]
        places: _Places = ()
        if _AT in known:
            known, places = _split(known)
        plan = self._plans.get(known)
        if plan is None or len(frames) != plan.frames or len(places) != plan.places:
            plan, places = self._plan(header, known, len(places), timed and _seconds(timed), len(frames))
            timed = None
        requests, traces = plan.requests, plan.traces
        if followed:
            if count != len(requests):
                raise TensorError(f"bad batch from the server: {count} traces for {len(requests)} requests")
            requests, traces = _with_traces(requests, followed), tuple(followed.values())
        arrays: list[Given] = []
        lent: list[Loan] = []
        for one in plan.inputs:
            if one is None:
                arrays.append(None)
                continue
            if type(one) is _Cuts:
                arrays.append(self._regions(one, delivery, places, arena))
                continue
            assert type(one) is _Input
            frame = frames[one.frame]
            if one.place >= 0:
                arrays.append(self._shared(one, places[one.place], delivery.batch_id, frame, arena, lent))
                continue
            if one.dtype is None or len(frame) != one.size:
                try:
                    arrays.append(decode(frame, one.datatype, one.shape))
                except TensorError as e:
                    raise TensorError(f'input "{one.name}": {e}') from e
                continue
            array = np.ndarray(one.shape, one.dtype, frame)
            arrays.append(array if array.flags.aligned else decode(frame, one.datatype, one.shape))
        if plan.batch is not None:
            return arrays, Batch(plan.rows, requests, traces=traces) if followed else plan.batch, lent
        # A copy: the function may change their parameters.
        own = [
            Request(
                one.rows, dict(one.parameters), one.priority, one.trace, one.trace_state, metadata=dict(one.metadata)
            )
            for one in requests
        ]
        timeout = _seconds(timed) if timed else plan.timeout
        deadline = None if timeout is None else delivery.received + timeout
        batch = Batch(plan.rows, own, deadline, traces=traces)
        if arena is not None:
            for name in {*plan.open, *plan.opened}:
                wanted, given = plan.open.get(name, {}), plan.opened.get(name, {})
                batch.opened[name] = Pictures(arena, delivery.batch_id, wanted, given)
        return arrays, batch, lent

    def _shared(
        self, one: _Input, at: tuple[int, ...], batch_id: bytes, frame: Buffer, arena: Arena | None, lent: list[Loan]
    ) -> Array:
        try:
            if arena is None or len(frame):
                raise TensorError("it is in shared memory, but shared memory is not in use or it has a frame, too")
            view, loan = arena.input(
                at, lend=self._trusted >= _TRUSTED_CALLS, echo=batch_id if self._echoes else b""
            )
            lent.append(loan)
            return decode(view, one.datatype, one.shape)
        except TensorError as e:
            raise TensorError(f'input "{one.name}": {e}') from e

    def _regions(self, cuts: _Cuts, delivery: Delivery, places: _Places, arena: Arena | None) -> Regions:
        """Regions, and their pictures where they lie: the function gets what is cut out of them."""
        pieces: list[list[memoryview]] = []
        for one in (cuts.pictures, cuts.corners):
            frame = delivery.frames[one.frame]
            if one.place < 0:
                pieces.append([memoryview(frame)])
            elif arena is None or len(frame):
                raise TensorError(
                    f'input "{one.name}": it is in shared memory, which is not in use, or it has a frame, too'
                )
            else:
                pieces.append(arena.pieces(places[one.place]))
        try:
            corners = decode(b"".join(pieces[1]), cuts.corners.datatype, cuts.corners.shape)
            pictures = _apart(pieces[0], cuts.pictures)
        except TensorError as e:
            raise TensorError(f'input "{cuts.pictures.name}", regions: {e}') from e
        keys = [(delivery.session, cuts.pictures.name, number) for number in cuts.ids]
        return Regions(pictures, cuts.of, corners, keys)

    def settle(self, lent: Sequence[Loan]) -> None:
        """Note whether the function has released the inputs of a batch.

        After the answer their memory is given to other requests. A function that still refers to
        its arrays would see them change, so from then on it gets copies.
        """
        if all(loan.owner() is None for loan in lent):
            self._trusted = min(self._trusted + 1, _TRUSTED_CALLS)
            return
        if self._trusted == _TRUSTED_CALLS:
            log.warning(
                "model %s keeps an input after its call, where it would change: its next inputs are copied",
                self._model,
            )
        self._trusted = 0

    def write(
        self,
        batch_id: bytes,
        outputs: list[Array],
        batch: Batch,
        arena: Arena | None = None,
        lent: Sequence[Loan] = (),
    ) -> list[Buffer]:
        """The answer with a batch's outputs.

        If inputs were lent, no frame refers to one of the function's arrays.

        An output that is an input, or a part of one, stays in place: the server has it.
        """
        frames: list[Buffer] = [wire.RESULT, batch_id, b""]
        shapes: list[tuple[int, ...]] = []
        places: list[tuple[int, ...]] = []
        self._echoes = False
        try:
            for i, tensor in enumerate(self._model.outputs):
                array = outputs[i]
                at: tuple[int, ...] = ()
                if arena is not None and array.nbytes >= MIN_SHARED and tensor.datatype != "BYTES":
                    at = self._passed(batch_id, array, arena, lent)
                    if not at and (region := arena.output(batch_id, array.nbytes)) is not None:
                        np.copyto(region.data.view(array.dtype).reshape(array.shape), array)
                        at = region.at
                shapes.append(array.shape)
                places.append(at)
                frames.append(b"" if at else encode(array, tensor.datatype, copy=bool(lent)))
        except TensorError as e:
            raise TensorError(f'output "{tensor.name}": {e}') from e
        if arena is not None and lent:
            arena.settle(batch_id)
        frames[2] = self._header(tuple(shapes), places, batch)
        if batch.opened:
            handed = {name: list(pictures.handed.values()) for name, pictures in batch.opened.items()}
            looked = {name: list(pictures.looked.values()) for name, pictures in batch.opened.items()}
            frames[2] = wire.opened(frames[2], handed, looked)
        return frames

    def cut(self, outputs: list[Array], first: int, end: int) -> list[Array]:
        """The rows from ``first`` to ``end`` of outputs; of a ragged one, their values."""
        counts = dict(zip((tensor.name for tensor in self._model.outputs), outputs, strict=True))
        shares = []
        for tensor, array in zip(self._model.outputs, outputs, strict=True):
            if tensor.ragged:
                ends = np.concatenate([[0], np.cumsum(counts[tensor.ragged], dtype=np.int64)])
                shares.append(array[int(ends[first]) : int(ends[end])])
            else:
                shares.append(array[first:end])
        return shares

    def _passed(self, batch_id: bytes, array: Array, arena: Arena, lent: Sequence[Loan]) -> tuple[int, ...]:
        """The server's place of an output that is an input, or a part of one; () if it has none."""
        for loan in lent:
            if (ahead := loan.ahead(array)) >= 0:
                self._echoes = True
                return arena.passed(batch_id, loan, ahead, array.nbytes)
        return ()

    def _header(self, shapes: tuple[tuple[int, ...], ...], places: _Places, batch: Batch) -> bytes:
        header, pieces = self._headers.get(shapes, (b"", []))
        if not header or batch.errors:
            heads = [
                wire.TensorHead(tensor.name, tensor.datatype, shape, at)
                for tensor, shape, at in zip(self._model.outputs, shapes, places, strict=True)
            ]
            if batch.errors:
                return wire.result_header(heads, batch.errors, batch.invalid)
            pieces = wire.result_pieces([replace(head, at=()) for head in heads])
            header = b"".join(pieces)
            _remember(self._headers, shapes, (header, pieces))
        if not any(places):
            return header
        ends = [_AT + b"%d,%d,%d]" % at if at else b"" for at in places]
        return b"".join([part for pair in zip(pieces, ends, strict=False) for part in pair]) + pieces[-1]

    def _plan(
        self, header: bytes, known: bytes, split: int, cut: float | None, frames: int
    ) -> tuple[_Plan, _Places]:
        """Read a header.

        ``known`` is its key in the cache: the header without the ``split`` places and without the
        timeout ``cut``.
        """
        try:
            head = wire.parse_batch(header)
        except wire.WireError as e:
            raise TensorError(f"bad batch from the server: {e}") from e
        if len(head.heads) != frames:
            raise TensorError(
                f"bad batch from the server: it describes {len(head.heads)} inputs, {frames} tensor frames came"
            )
        requests = tuple(_request(head, i) for i in range(len(head.requests)))
        traces = tuple(filter(None, head.traces))
        places = [one.at for one in head.heads if one.at]
        # These functions see data of their own request.
        alone = self._model.sees_requests or self._model.per_row or self._model.images
        shared = None if alone else Batch(head.rows, requests, traces=traces)
        plan = _Plan(
            head.rows, frames, len(places), self._inputs(head), requests, head.timeout, traces, shared, head.open,
            head.opened,
        )  # fmt: skip
        # The timeout that was cut out must be the header's own, and not of an object in it.
        timed = cut is None or (head.timeout == cut and header.count(b'"timeout_ms"') == 1)
        plain = not (any(head.parameters) or any(head.metadata) or traces or head.pictures or head.open or head.opened)
        if timed and len(places) == split and plain and len(known) <= _LONGEST:
            _remember(self._plans, known, plan)
        return plan, places

    def _inputs(self, head: wire.BatchHeader) -> list[_Input | _Cuts | None]:
        came = {one.name: (i, one) for i, one in enumerate(head.heads)}
        placed = [i for i, one in enumerate(head.heads) if one.at]
        inputs: list[_Input | _Cuts | None] = []
        if odd := head.pictures.keys() - {image.name for _, image in self._model.images if image.regions}:
            raise TensorError(f"regions of {sorted(odd)} came, which are no inputs with regions")
        for tensor in self._model.inputs:
            if isinstance(tensor, Image) and tensor.regions and (cuts := _cuts(tensor, head, came, placed)):
                inputs.append(cuts)
                continue
            if tensor.name not in came and tensor.optional:
                inputs.append(None)
                continue
            if tensor.name not in came:
                raise TensorError(f'input "{tensor.name}" is missing, got {sorted(came)}')
            i, one = came[tensor.name]
            rows = head.rows if self._model.batched else None
            files = isinstance(tensor, Image) and one.datatype == "BYTES" and tensor.accepts_file(one.shape, rows)
            if files:
                inputs.append(_Input(one.name, i, "BYTES", one.shape, None, 0, placed.index(i) if one.at else -1))
                continue
            rows_fit = not self._model.batched or one.shape[:1] == (head.rows,)
            if one.datatype != tensor.datatype or not tensor.accepts(one.shape) or not rows_fit:
                raise TensorError(
                    f'input "{tensor.name}": declared {tensor.datatype} {list(tensor.shape)} and {head.rows} rows, '
                    f"got {one.datatype} {list(one.shape)}"
                )
            count = math.prod(one.shape)
            plain = one.datatype != "BYTES" and count > 0 and min(one.shape, default=0) >= 0
            dtype = tensor.dtype if plain else None
            place = placed.index(i) if one.at else -1
            inputs.append(_Input(one.name, i, one.datatype, one.shape, dtype, count * tensor.dtype.itemsize, place))
        return inputs


def _cuts(
    image: Image, head: wire.BatchHeader, came: Mapping[str, tuple[int, wire.TensorHead]], placed: Sequence[int]
) -> _Cuts | None:
    """The regions of an input, None if its rows are whole pictures."""
    said, name = head.pictures.get(image.name), f"{image.name}_regions"
    if said is None and name not in came:
        return None
    if said is None or name not in came or image.name not in came:
        raise TensorError(f'regions of "{image.name}" need it, "{name}" and pictures in the header, got {sorted(came)}')
    (i, one), (j, corners) = came[image.name], came[name]
    count = len(said.ids)
    files = one.datatype == "BYTES" and one.shape == (count,)
    if not files and not (one.datatype == image.datatype and image.accepts(one.shape) and one.shape[0] == count):
        raise TensorError(
            f'input "{image.name}": declared {image.datatype} {list(image.shape)} and {count} pictures with regions, '
            f"got {one.datatype} {list(one.shape)}"
        )
    if (corners.datatype, corners.shape) != ("FP32", (head.rows, 4, 2)):
        raise TensorError(
            f'input "{name}": FP32 {[head.rows, 4, 2]} expected, got {corners.datatype} {list(corners.shape)}'
        )
    inputs = [
        _Input(head.name, at, head.datatype, head.shape, None, 0, placed.index(at) if head.at else -1)
        for at, head in ((i, one), (j, corners))
    ]
    return _Cuts(inputs[0], inputs[1], said.of, said.ids)


def _apart(pieces: Sequence[memoryview], one: _Input) -> list[Array | Buffer]:
    """The pictures of an input, each where it lies, unless pieces do not end where pictures do."""
    count, shape = one.shape[0], one.shape[1:]
    if one.datatype == "BYTES":
        try:
            files = [file for piece in pieces for file in elements(piece)]
        except TensorError:
            files = elements(b"".join(pieces))
        if len(files) != count:
            raise TensorError(f"{count} pictures expected, got {len(files)}")
        return list(files)
    size = math.prod(shape)
    if size == 0 or any(len(piece) % size for piece in pieces):
        pieces = [memoryview(b"".join(pieces))]
    pixels = [decode(piece, one.datatype, (len(piece) // max(size, 1), *shape)) for piece in pieces]
    pictures = [picture for several in pixels for picture in several]
    if len(pictures) != count or size == 0:
        raise TensorError(f"{count} pictures of {list(shape)} expected, got {sum(map(len, pieces))} bytes")
    return list(pictures)


def _request(head: wire.BatchHeader, i: int) -> Request:
    parameters, metadata = head.parameters[i], head.metadata[i]
    if "id" in metadata:
        parameters = {"id": metadata["id"]} | parameters
    return Request(
        head.requests[i], parameters, head.priorities[i], head.traces[i], head.trace_states[i],
        metadata=parameters | metadata,
    )  # fmt: skip


def _seconds(timed: re.Match[bytes]) -> float:
    return float(timed[1]) / 1000


def _split(header: bytes) -> tuple[bytes, _Places]:
    """A header without its places, and the places. An invalid one is returned unchanged."""
    first, *rest = header.split(_AT)
    if not rest:
        return header, ()
    places = []
    kept = [first]
    for part in rest:
        numbers, end, after = part.partition(b"]")
        try:
            at = tuple(map(int, numbers.split(b",")))
        except ValueError:
            return header, ()
        if not end or len(at) % 3:
            return header, ()
        places.append(at)
        kept.append(after)
    return _AT.join(kept), places


def _followed(header: bytes) -> tuple[bytes, Mapping[int, str], int]:
    """A header without its traces; the traces by request number; and the number of requests.

    The traces are its last member, in which nothing is nested, so they are surely the header's own.
    A header of another form, as with trace states, is returned unchanged, to be read as a whole.
    """
    at = header.rfind(_TRACES)
    every = header[at + len(_TRACES) : -2]
    pieces = every.split(b'"')
    if b"\\" in every or b"]" in every or b"".join(pieces[::2]).replace(b"null", b"").strip(b","):
        return header, {}, 0
    followed, number = {}, 0
    for between, parent in zip(pieces[::2], pieces[1::2], strict=False):
        number += between.count(b",")
        followed[number] = parent.decode()
    return header[:at] + b"}", followed, number + pieces[-1].count(b",") + 1


def _with_traces(requests: Sequence[Request], followed: Mapping[int, str]) -> tuple[Request, ...]:
    every = list(requests)
    for number, parent in followed.items():
        every[number] = replace(every[number], trace=parent)
    return tuple(every)


def _remember(memory: dict[Any, Any], key: object, value: object) -> None:
    if len(memory) >= _REMEMBERED:
        memory.clear()
    memory[key] = value


def read_feedback(lesson: Lesson) -> Feedback:
    """Feedback as the hook receives it."""
    try:
        message = wire.parse_feedback(lesson.frames)
    except wire.WireError as e:
        raise TensorError(f"bad feedback from the server: {e}") from e
    inputs, outputs, truth = (
        {head.name: decode(frame, head.datatype, head.shape) for head, frame in tensors}
        for tensors in (message.inputs, message.outputs, message.truth)
    )
    return Feedback(
        application=message.application,
        user=message.user,
        rows=message.rows,
        inputs=inputs,
        outputs=outputs,
        truth=truth,
        label=message.label,
        loss=message.loss,
    )

"""Container RPC, version 4: the messages of containers/DESIGN.md as lists of frames.

Frame 0 names the kind of message. Integers are little-endian, JSON is UTF-8, a batch's id is eight
bytes that its answer repeats.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from .tensors import Buffer

PROTOCOL = 4
MAX_SLOTS = 64
"""The most batches of a session at once. A server refuses a hello that asks for more."""

HELLO = b"hello"
WELCOME = b"welcome"
REFUSED = b"refused"
WAIT = b"wait"
HEARTBEAT = b"heartbeat"
BATCH = b"batch"
RESULT = b"result"
DRAINING = b"draining"
GOODBYE = b"goodbye"
FEEDBACK = b"feedback"
ARENA = b"arena"
GRANT = b"grant"
OFFER = b"offer"


class WireError(ValueError):
    """The server sent something that is not version 4."""


def to_json(value: object) -> bytes:
    """Compact JSON in UTF-8. Lone surrogates, which UTF-8 does not have, are escaped."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="backslashreplace")


def from_json(frame: Buffer) -> dict[str, object]:
    """The object in a frame; anything else is a :class:`WireError`."""
    try:
        value = json.loads(bytes(frame))
    except (ValueError, RecursionError) as e:
        raise WireError(f"not JSON: {e}") from e
    if not isinstance(value, dict):
        raise WireError(f"expected a JSON object, got {type(value).__name__}")
    return value


@dataclass(frozen=True)
class TensorHead:
    """A tensor's name, datatype and shape; and its places, if it is in shared memory.

    Places are triples of segment, offset and bytes.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    at: tuple[int, ...] = ()

    @classmethod
    def parse(cls, value: object) -> TensorHead:
        """One entry of a batch header's ``inputs``."""
        if isinstance(value, Mapping):
            name, datatype, shape = (value.get(key) for key in ("name", "datatype", "shape"))
            at = value.get("at") or []
            if (
                isinstance(name, str)
                and isinstance(datatype, str)
                and isinstance(shape, list)
                and all(type(dim) is int for dim in shape)
                and isinstance(at, list)
                and len(at) % 3 == 0
                and all(type(number) is int for number in at)
            ):
                return cls(name, datatype, tuple(shape), tuple(at))
        raise WireError(f"not a tensor's name, datatype and shape: {value!r}")

    def json(self) -> dict[str, object]:
        """The entry in a result header's ``outputs``."""
        head: dict[str, object] = {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}
        if self.at:
            head["at"] = list(self.at)
        return head


@dataclass(frozen=True)
class Pictures:
    """Which pictures the rows of an input are regions of."""

    of: list[int]
    """The picture of each row."""
    ids: list[int]
    """An id for each picture, the same in all batches of a session that have it."""

    @classmethod
    def parse(cls, value: object, rows: int) -> Pictures:
        """One entry of a batch header's ``pictures``."""
        if not isinstance(value, Mapping):
            raise WireError(f"not the pictures of regions: {value!r}")
        of, ids = _list_of(int, value, "of"), _list_of(int, value, "ids")
        if len(of) != rows or not all(0 <= picture < len(ids) for picture in of):
            raise WireError(f"{rows} rows are regions of {len(ids)} pictures, got {of} as the picture of each")
        if len(set(ids)) != len(ids):
            raise WireError(f"the ids of pictures differ, got {ids}")
        return cls(of, ids)


@dataclass(frozen=True)
class Opened:
    """One picture of an input that a container has decoded, or should, for others."""

    picture: int
    """Its index in the input."""
    step: int
    """How many of its pixels, along each side, became one; the most, where that is asked for."""
    at: tuple[int, ...] = ()
    """Segment, offset and bytes of the pixels; () if they have no place."""
    bytes: int = 0
    """Of pixels without a place."""

    @classmethod
    def parse(cls, value: object) -> Opened:
        """One entry of a batch header's ``open`` or ``opened``."""
        if isinstance(value, Mapping):
            picture, step, at = value.get("picture"), value.get("step"), _list_of(int, value, "at")
            if type(picture) is int and type(step) is int and len(at) in (0, 3):
                return cls(picture, step, tuple(at))
        raise WireError(f"not a picture that is handed on: {value!r}")

    def json(self) -> dict[str, object]:
        """The entry in a result header's ``opened`` or ``looked``."""
        head: dict[str, object] = {"picture": self.picture, "step": self.step}
        if self.at:
            head["at"] = list(self.at)
        if self.bytes:
            head["bytes"] = self.bytes
        return head


@dataclass(frozen=True)
class BatchHeader:
    """The contents of a batch's header: the heads of its inputs, and the data of its requests."""

    rows: int
    heads: list[TensorHead]
    timeout: float | None
    """Seconds left, when it was sent, until the earliest deadline."""
    requests: list[int]
    """Rows of each request, in order."""
    parameters: list[dict[str, object]]
    """Parameters of each request."""
    metadata: list[dict[str, object]]
    """What else its metadata has."""
    priorities: list[int]
    traces: list[str]
    """The server's span of each request, "" for one that it does not trace."""
    trace_states: list[str]
    """Other systems' data about its trace, "" for none."""
    pictures: dict[str, Pictures]
    """For each input whose rows are regions, by its name, the pictures that they are of."""
    open: dict[str, dict[int, Opened]]
    """The pictures of inputs, by their index, that should be handed on, and"""
    opened: dict[str, dict[int, Opened]]
    """those that others have handed on."""


def parse_batch(header: Buffer) -> BatchHeader:
    """Read the header of a batch and check that it agrees with itself."""
    head = from_json(header)
    rows = head.get("rows")
    if type(rows) is not int or rows < 1:
        raise WireError(f"rows must be a positive integer, got {rows!r}")
    inputs = head.get("inputs")
    if not isinstance(inputs, list):
        raise WireError(f"inputs must be a list, got {inputs!r}")
    requests = _list_of(int, head, "requests") or [1] * rows
    if sum(requests) != rows:
        raise WireError(f"requests {requests} do not add up to {rows} rows")
    priorities = _list_of(int, head, "priority") or [0] * len(requests)
    if len(priorities) != len(requests):
        raise WireError(f"priorities of {len(requests)} requests expected, got {priorities!r}")
    timeout = head.get("timeout_ms")
    pictures = head.get("pictures") or {}
    if not isinstance(pictures, Mapping):
        raise WireError(f"pictures must be an object, got {pictures!r}")
    return BatchHeader(
        rows=rows,
        heads=[TensorHead.parse(value) for value in inputs],
        timeout=timeout / 1000 if isinstance(timeout, int | float) else None,
        requests=requests,
        parameters=_objects("parameters", head, len(requests)),
        metadata=_objects("metadata", head, len(requests)),
        priorities=priorities,
        traces=_texts("traces", head, len(requests)),
        trace_states=_texts("trace_states", head, len(requests)),
        pictures={name: Pictures.parse(value, rows) for name, value in pictures.items()},
        open=_opened("open", head),
        opened=_opened("opened", head),
    )


def _opened(key: str, head: Mapping[str, object]) -> dict[str, dict[int, Opened]]:
    """Pictures by their input and index in it."""
    inputs = head.get(key) or {}
    if not isinstance(inputs, Mapping) or not all(isinstance(every, list) for every in inputs.values()):
        raise WireError(f"{key} must be an object with lists, got {inputs!r}")
    return {name: {one.picture: one for one in map(Opened.parse, every)} for name, every in inputs.items()}


def _objects(key: str, head: Mapping[str, object], requests: int) -> list[dict[str, object]]:
    """An object for each request, empty where there is none."""
    values = head.get(key) or [None] * requests
    if not isinstance(values, list) or len(values) != requests:
        raise WireError(f"{key} of {requests} requests expected, got {values!r}")
    return [value if isinstance(value, dict) else {} for value in values]


def _texts(key: str, head: Mapping[str, object], requests: int) -> list[str]:
    """A text for each request, "" where there is none."""
    values = head.get(key) or [None] * requests
    if not isinstance(values, list) or len(values) != requests:
        raise WireError(f"{key} of {requests} requests expected, got {values!r}")
    return [value if isinstance(value, str) else "" for value in values]


@dataclass(frozen=True)
class FeedbackMessage:
    """Feedback as received: heads and frames of its tensors, and its other fields."""

    application: str
    user: str
    rows: int
    inputs: list[tuple[TensorHead, Buffer]]
    outputs: list[tuple[TensorHead, Buffer]]
    truth: list[tuple[TensorHead, Buffer]]
    label: object
    loss: float | None


def parse_feedback(frames: Sequence[Buffer]) -> FeedbackMessage:
    """Read feedback, without its kind: the header, and a frame for each input, output and truth."""
    if not frames:
        raise WireError("no header")
    head = from_json(frames[0])
    rows, loss = head.get("rows"), head.get("loss")
    if type(rows) is not int or rows < 1:
        raise WireError(f"rows must be a positive integer, got {rows!r}")
    rest = list(frames[1:])
    tensors: list[list[tuple[TensorHead, Buffer]]] = []
    for key in ("inputs", "outputs", "truth"):
        heads = head.get(key) or []
        if not isinstance(heads, list) or len(heads) > len(rest):
            raise WireError(f"{key} are {heads!r}, {len(rest)} tensor frames are left")
        tensors.append([(TensorHead.parse(value), rest.pop(0)) for value in heads])
    if rest:
        raise WireError(f"{len(rest)} tensor frames are not described")
    return FeedbackMessage(
        application=str(head.get("application", "")),
        user=str(head.get("user", "")),
        rows=rows,
        inputs=tensors[0],
        outputs=tensors[1],
        truth=tensors[2],
        label=head.get("label"),
        loss=float(loss) if isinstance(loss, int | float) else None,
    )


def _list_of(kind: type[int], head: Mapping[str, object], key: str) -> list[int]:
    value = head.get(key)
    if value is None:
        return []
    if isinstance(value, list) and all(type(item) is kind for item in value):
        return value
    raise WireError(f"{key} must be a list of integers, got {value!r}")


def result_header(
    heads: Sequence[TensorHead], errors: Mapping[int, str], invalid: AbstractSet[int] = frozenset()
) -> bytes:
    """The header of an answer, with the failed rows, and those of them that were invalid."""
    header: dict[str, object] = {"outputs": [head.json() for head in heads]}
    if errors:
        failed: list[dict[str, object]] = [{"row": row, "message": text} for row, text in sorted(errors.items())]
        for one in failed:
            if one["row"] in invalid:
                one["invalid"] = True
        header["errors"] = failed
    return to_json(header)


def result_pieces(heads: Sequence[TensorHead]) -> list[bytes]:
    """The header of an answer without failed rows, cut where each output's ``at`` goes."""
    entries = [to_json(head.json())[:-1] for head in heads]
    return [b'{"outputs":[' + entries[0], *(b"}," + entry for entry in entries[1:]), b"}]}"]


def prepared(header: Buffer, seconds: float) -> bytes:
    """The header of an answer, with the time that the inputs took to be made ready."""
    return bytes(header)[:-1] + b',"prepared_ms":%.3f}' % (seconds * 1000)


def opened(header: Buffer, handed: Mapping[str, list[Opened]], looked: Mapping[str, list[Opened]]) -> bytes:
    """The header of an answer, with the pictures that are handed on and those that were."""
    whole = bytes(header)
    for key, inputs in ((b"opened", handed), (b"looked", looked)):
        if every := {name: [one.json() for one in some] for name, some in inputs.items() if some}:
            whole = whole[:-1] + b',"%s":%s}' % (key, to_json(every))
    return whole


def failure(batch_id: bytes, text: str) -> list[Buffer]:
    """The answer to a batch that failed as a whole."""
    return [RESULT, batch_id, to_json({"error": text})]

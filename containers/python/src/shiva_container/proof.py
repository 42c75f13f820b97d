"""Whether the rows of a network may share a batch: shown by executing it, not read from its shapes.

Networks in files often declare an open first dimension and still answer wrongly when several rows
use it: they answer the first row only, normalise over the batch, have a batch of one baked in, or
return one list for all rows with the number of each item's row in a column. So random rows are
executed alone and together, and their values compared. Only what is shown is used.

What is compared must be able to differ: rows that have the same answer show nothing. So the rows
are drawn in several ways until their answers differ by more than the comparison allows, and if none
do, the network gets one row at a time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np

from .files.network import Network, Port, Unusable, line
from .tensors import DATATYPES, Array

RELATIVE = {"FP16": 1e-2, "FP32": 1e-4, "FP64": 1e-6}
"""How far equal answers may differ, of the largest value of the output. Others must be equal."""

STEADY = 10
"""Two equal executions may differ by this many times as much. Beyond, the network remembers or
draws lots, and what it answers says nothing about rows."""

SIDES = (64, 320, 16, 224, 640, 256, 1, 512, 1000, 16000)
"""Sizes that are tried, in order, where a network leaves them open."""

INTEGERS = ((-128, 100), (0, 100), (0, 1))
"""Ranges of integers that are tried, in order: many are places in a table, such as words of a text,
and a network refuses those that its table does not have."""

LARGEST = 1 << 24
"""Inputs with more values than this are not made up."""

MOST = 8
"""The largest batch that is tried, unless the file or the user has another."""


class Way(Enum):
    """How rows reach the network."""

    ROWS = "rows"
    """Several at once, in the first dimension of all inputs and outputs."""
    PADDED = "padded"
    """Several at once, filled up to the number that the network takes."""
    INDEXED = "indexed"
    """Several at once; an output lists the items of all rows, with the row of each in a column."""
    ONE = "one at a time"


@dataclass(frozen=True)
class Verdict:
    """How rows may be executed, and what has shown it."""

    way: Way
    sentence: str
    """The proof in words, for people."""
    counted: bool = True
    """Whether the first dimension of all inputs and outputs counts rows, even if of one only."""
    most: int = 0
    """The most rows of a batch; 0: any number."""
    columns: dict[str, int] = field(default_factory=dict)
    """For INDEXED, the column of each such output that has the row."""
    outputs: Sequence[Port] = ()
    """The outputs of the network, with the shapes that the executions have shown."""

    def __str__(self) -> str:
        return f"{self.way.value}: {self.sentence}"


class _Different(Exception):
    """What a row is answered depends on the rows beside it; the text says how."""


def prove(network: Network, *, most: int = MOST, seed: int = 0) -> Verdict:
    """Show how the rows of a network may be executed, with at most ten executions that succeed.

    ``most`` is the largest batch that is tried.
    """
    most = max(most, 2)
    leads = {port.sizes[0] if port.sizes else None for port in network.inputs}
    fixed = next(iter(leads)) if len(leads) == 1 else None
    try:
        trial = _Trial(network, seed, fixed if isinstance(fixed, int) else 1)
    except Unusable as e:
        return _as_declared(network, str(e))
    if not network.inputs:
        return trial.single("it has no inputs")
    if isinstance(fixed, int) and fixed > 1:
        return trial.padded(fixed)
    if None in leads or len({one if isinstance(one, int) else "" for one in leads}) != 1:
        return trial.single("its inputs do not all begin with a dimension of the same kind")
    if isinstance(fixed, int):
        return trial.single(f"its first dimension has the fixed size {fixed}")
    return trial.together(most)


def made_up(network: Network) -> list[Array] | None:
    """One row of inputs that the network executes; None: none is known."""
    try:
        return _Trial(network, 0, 1).rows[0]
    except Unusable:
        return None


def unproven(network: Network, batch: str) -> Verdict:
    """What the user says of a network: ``batch`` is "off", or "force"."""
    said = f"batch = {batch}, and nothing was tried"
    return _as_declared(network, said) if batch == "off" else Verdict(Way.ROWS, said, outputs=network.outputs)


def _as_declared(network: Network, why: str) -> Verdict:
    for port in network.outputs:
        if port.sizes is None:
            raise Unusable(f"the shape of output {port.name} is not declared, and {why}")
    return Verdict(Way.ONE, why, False, 1, outputs=network.outputs)


class _Trial:
    """Executions of a network on rows that are made up."""

    def __init__(self, network: Network, seed: int, rows: int) -> None:
        self.network = network
        self.random = np.random.default_rng(seed)
        self.first = self._begin(rows)

    def _begin(self, rows: int) -> Sequence[Array]:
        """The first execution, which finds sizes that the network takes where they are open, and
        integers."""
        leads = {one.sizes[0] if one.sizes else None for one in self.network.inputs}
        self.counts = len(leads) == 1
        ways = list(_sizes(self.network.inputs))
        if not ways:
            raise Unusable(f"inputs of more than {LARGEST} values are not made up")
        wide = any(_wide(port) for port in self.network.inputs)
        failure: Exception | None = None
        for self.sizes, self.range in itertools.product(ways, INTEGERS if wide else INTEGERS[:1]):
            try:
                self.draw()
                return self.run([self.rows[0]] * rows)
            except Exception as e:  # whatever runtimes raise
                failure = failure or e
        tried = f", with open sizes from {min(SIDES)} to {max(SIDES)}" if len(ways) > 1 else ""
        raise Unusable(f"no made-up input could be executed{tried}: {line(failure)}")

    def draw(self) -> None:
        """Make up a row in each style. Inputs have a first dimension of one if it counts rows."""
        self.rows = [
            [_made_up(port, self._shape(port), style, self.range, self.random) for port in self.network.inputs]
            for style in STYLES
        ]

    def _shape(self, port: Port) -> list[int]:
        shape = []
        for i, size in enumerate(port.sizes or ()):
            if i == 0:
                shape.append(1 if self.counts or not isinstance(size, int) else size)
            else:
                shape.append(size if isinstance(size, int) else self.sizes[_key(port, i)])
        return shape

    def run(self, rows: Sequence[list[Array]]) -> list[Array]:
        """The outputs for rows that are executed together."""
        inputs = [np.concatenate(parts) if len(rows) > 1 else parts[0] for parts in zip(*rows, strict=True)]
        return [np.asarray(one) for one in self.network.run(inputs)]

    def ports(self) -> list[Port]:
        """The outputs, with the sizes that the first execution does not contradict."""
        ports = []
        for port, array in zip(self.network.outputs, self.first, strict=True):
            sizes = port.sizes if port.sizes is not None and len(port.sizes) == array.ndim else ("",) * array.ndim
            agreed = [one if one == there else "" for one, there in zip(sizes, array.shape, strict=True)]
            ports.append(replace(port, sizes=tuple(agreed)))
        return ports

    # Verdicts.

    def single(self, why: str) -> Verdict:
        counted = all(port.sizes and port.sizes[0] == 1 for port in self.network.inputs)
        counted = counted and all(array.ndim > 0 and len(array) == 1 for array in self.first)
        return Verdict(Way.ONE, why, counted, 1, outputs=self.ports())

    def together(self, most: int) -> Verdict:
        """For a network whose first dimension is open."""
        try:
            alone, slack = self._alone(1)
            columns = self._columns(alone)
            far = 0.0
            counts = sorted({2, 3, most} - {one for one in (2, 3) if one > most})
            for count in counts:
                places = [*range(min(count, len(self.rows)))]
                if count > len(self.rows):  # the known rows are first, in the middle, and last
                    places = [0, *[1] * (count - 2), 2]
                try:
                    answers = self.run([self.rows[i] for i in places])
                except Exception as e:
                    raise _Different(f"{count} rows cannot be executed together: {line(e)}") from e
                far = max(far, self._compare(answers, alone, places, slack, columns))
        except _Different as e:
            return self.single(str(e))
        said = (
            f"{', '.join(map(str, counts[:-1]))} and {counts[-1]} random rows together had the answers that they have"
        )
        sentence = f"{said} alone{f', within {far:.1e}' if far else ', to the bit'}"
        if columns:
            named = ", ".join(f"column {column} of {name}" for name, column in columns.items())
            return Verdict(Way.INDEXED, f"{sentence}; {named} has the row of each item", True, 0, columns, self.ports())
        return Verdict(Way.ROWS, sentence, outputs=self.ports())

    def padded(self, count: int) -> Verdict:
        """For a network that takes a fixed number of rows."""
        outputs = self.ports()
        whole = f"its batches have {count} rows"
        if any(array.ndim == 0 or len(array) != count for array in self.first):
            return Verdict(Way.ONE, f"{whole}, and not all outputs have as many", False, 1, outputs=outputs)
        try:
            alone, slack = self._alone(count)
            far = 0.0
            for shift in (0, 1):
                places = [(i + shift) % len(self.rows) for i in range(count)]
                far = max(far, self._compare(self.run([self.rows[i] for i in places]), alone, places, slack, {}))
        except _Different as e:
            return Verdict(Way.ONE, f"{whole}, and {e}", False, 1, outputs=outputs)
        same = f"within {far:.1e}" if far else "to the bit"
        return Verdict(
            Way.PADDED, f"{whole}, and a row has the same answer at each place, {same}", True, count, outputs=outputs
        )

    def _alone(self, copies: int) -> tuple[list[list[Array]], list[float]]:
        """The answers of three rows, each executed by itself, and how far equal executions differ.

        Where a network takes ``copies`` rows, a row by itself is that many copies of it.
        """

        def itself(answers: Sequence[Array]) -> list[Array]:
            return [one[:1] if copies > 1 else one for one in answers]

        def executed(row: list[Array]) -> list[Array]:
            try:
                return itself(self.run([row] * copies))
            except Exception as e:
                raise _Different(f"not every random row can be executed: {line(e)}") from e

        first = itself(self.first)
        slack = self._slack(first, executed(self.rows[0]))
        for answered in (first, None):
            if answered is None:
                self.draw()
                answered = executed(self.rows[0])
            alone = [answered, *map(executed, self.rows[1:])]
            for other in alone[1:]:  # what differs by less could not fail the comparison
                if any(_distance(a, b) > far for a, b, far in zip(answered, other, slack, strict=True)):
                    return alone, slack
        raise _Different("random rows all have the same answer, or nearly, which shows nothing")

    def _slack(self, before: Sequence[Array], after: Sequence[Array]) -> list[float]:
        """How far each output of equal rows may differ, from two executions of the same row."""
        slack = []
        for port, one, other in zip(self.network.outputs, before, after, strict=True):
            far, allowed = _distance(one, other), RELATIVE.get(port.datatype, 0.0)
            if far > STEADY * allowed:
                raise _Different(
                    f"the same row has another answer the second time (output {port.name}): it keeps state"
                )
            slack.append(max(far, allowed))
        return slack

    def _columns(self, alone: Sequence[Sequence[Array]]) -> dict[str, int]:
        """The outputs that list items, with the column that might have the row of each.

        Alone, all items are of row 0; such a list has any number of items, as its file declares or
        as its answers show.
        """
        columns = {}
        for i, port in enumerate(self.network.outputs):
            arrays = [answers[i] for answers in alone]
            if any(array.ndim != 2 or array.shape[1] < 2 for array in arrays):
                continue
            if all(len(array) == 1 for array in arrays):
                continue
            if sum(len(array) > 0 for array in arrays) < 2:  # all items would be of one row
                continue
            zero = [c for c in range(arrays[0].shape[1]) if all((array[:, c] == 0).all() for array in arrays)]
            if zero:
                columns[port.name] = zero[0]
        return columns

    def _compare(
        self,
        answers: Sequence[Array],
        alone: Sequence[Sequence[Array]],
        places: Sequence[int],
        slack: Sequence[float],
        columns: dict[str, int],
    ) -> float:
        """How far rows that were executed together differ from what they are alone."""
        far = 0.0
        for i, port in enumerate(self.network.outputs):
            if port.name in columns:
                parts = _split(port.name, answers[i], columns[port.name], len(places))
            elif answers[i].ndim == 0 or len(answers[i]) != len(places):
                shape = list(answers[i].shape)
                raise _Different(f"{len(places)} rows have an output {port.name} of shape {shape}")
            else:
                parts = [answers[i][place : place + 1] for place in range(len(places))]
            for place, (part, row) in enumerate(zip(parts, places, strict=True)):
                distance = _distance(part, alone[row][i])
                if distance > slack[i]:
                    by = f"by {distance:.1e}" if math.isfinite(distance) else "in its shape or values"
                    raise _Different(
                        f"output {port.name} of row {place} of {len(places)} differs {by} from what the row has alone"
                    )
                far = max(far, distance)
        return far


def _split(name: str, items: Array, column: int, rows: int) -> list[Array]:
    """The items of each row, with 0 as their row."""
    if items.ndim != 2 or items.shape[1] <= column:
        raise _Different(f"output {name} has the shape {list(items.shape)}")
    parts = split(items, column, rows)
    if sum(map(len, parts)) != len(items):
        raise _Different(f"column {column} of output {name} has numbers that are no rows")
    return parts


def split(items: Array, column: int, rows: int) -> list[Array]:
    """The items of each row of a batch, from a list whose column has the row of each.

    In the parts the column is 0, as if the row had been executed alone.
    """
    parts = []
    for row in range(rows):
        part = items[items[:, column] == row].copy()
        part[:, column] = 0
        parts.append(part)
    return parts


def _key(port: Port, dimension: int) -> str:
    """The name of an open size: its own, or that of its place."""
    return (port.sizes or ())[dimension] or f"{port.name} {dimension}"  # type: ignore[return-value]


def _sizes(inputs: Sequence[Port]) -> Iterator[dict[str, int]]:
    """Open sizes to try, by their names. Before a fixed size an open one may also be a second
    number of rows, as in the state of a recurrent network."""
    sides: set[str] = set()
    rows: set[str] = set()
    for port in inputs:
        sizes = port.sizes or ()
        for i in range(1, len(sizes)):
            if not isinstance(sizes[i], int):
                inner = i + 1 < len(sizes) and isinstance(sizes[i + 1], int)
                (rows if inner else sides).add(_key(port, i))
    for side in SIDES if sides or rows else (1,):
        for second in (1, side) if rows and side > 1 else (side,):
            chosen = dict.fromkeys(rows, second) | dict.fromkeys(sides, side)
            elements = [
                math.prod(
                    size if isinstance(size, int) else chosen.get(_key(port, i), 1)
                    for i, size in enumerate(port.sizes or ())
                )
                for port in inputs
            ]
            if max(elements, default=0) <= LARGEST:
                yield chosen


STYLES = range(3)
"""Ways in which rows are made up."""


def _wide(port: Port) -> bool:
    """Whether an input has integers that are more than a byte, and so hardly pixels."""
    return DATATYPES[port.datatype].kind in "iu" and DATATYPES[port.datatype].itemsize > 1


def _made_up(
    port: Port, shape: Sequence[int], style: int, integers: tuple[int, int], random: np.random.Generator
) -> Array:
    """A random input: as a picture's pixels, as values about 0, and as coarse blocks.

    The first style has the ends of the range of integers: a network that takes it takes the others.
    """
    dtype = DATATYPES[port.datatype]
    kind = dtype.kind
    if port.datatype == "BYTES":
        words = [f"text {number}".encode() for number in random.integers(0, 1000, math.prod(shape))]
        return np.array([*words, None], object)[:-1].reshape(shape)
    if kind == "b":
        return random.random(shape) < (0.5, 0.1, 0.9)[style]
    values = _values(shape, style, random)
    if kind in "iu":
        low, most = integers if _wide(port) else (-128, min(np.iinfo(dtype).max, 255))
        low = low if kind == "i" else 0
        first = low if style == 1 else 0
        made = np.asarray(first + values * (most + 1 - first)).astype(dtype)
        if style == 0 and _wide(port):
            made.flat[:1], made.flat[1:2] = most, low
        return made
    scale = (1.0, 1.0, 255.0)[style]
    return np.asarray((values - 0.5) * 4 if style == 1 else values * scale).astype(dtype)


def _values(shape: Sequence[int], style: int, random: np.random.Generator) -> Any:
    """Values from 0 to 1. In style 2 neighbours are equal, as in pictures that show something."""
    values = random.random(shape)
    if style == 2 and len(shape) > 2:
        for axis in (-1, -2):
            n = values.shape[axis]
            values = np.take(values, np.arange(n) // max(1, n // 4) * max(1, n // 4), axis=axis)
    return values


def _distance(a: Array, b: Array) -> float:
    """The largest difference of two arrays, relative to their largest value."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return math.inf
    if a.dtype.kind != "f":
        return 0.0 if np.array_equal(a, b) else math.inf
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return math.inf
    if not finite.any():
        return 0.0
    x, y = a[finite].astype(np.float64), b[finite].astype(np.float64)
    largest = max(float(np.abs(x).max()), float(np.abs(y).max()), 1e-9)
    return float(np.abs(x - y).max()) / largest

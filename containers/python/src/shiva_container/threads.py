"""Executing a network with one thread or with several, whichever is faster.

Runtimes divide each operator among the threads of a session. Those of a small network, or of a
batch of one row, are over before the other threads have begun, and where other networks are busy,
all threads wait for one that has no processor. Only the executions themselves tell: so a network
that is quick has two sessions, and each size of a batch is executed by the one that was faster. The
other one is tried again now and then, since what others do changes.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from .files.network import Network
from .proof import Verdict, Way, made_up
from .tensors import Array
from .warm import warm

DIVIDE = ("onnxruntime", "openvino", "tflite")
"""Runtimes that divide operators among threads."""

LONG = 0.01
"""Seconds: operators of a network that takes longer for a row are worth dividing in any case."""

LARGE = 64 << 20
"""Bytes of a network that is not read twice: its sessions would take twice the memory."""

WORTH = 1.05
"""How many times as long one thread may take, which leaves the other processors to others."""

FADE = 1 / 8
"""The weight of an execution in the mean time of its kind."""

TRIALS = 1 / 300
"""The share of the time that trials of the slower session may cost."""

LEAST, MOST = 0.2, 16.0
"""What a trial counts at least and at most, as parts of an execution. The least keeps equals from
taking turns; the most is why one execution that was held up is soon forgotten."""


def divided(
    network: Network, verdict: Verdict, path: Path, read_after: os.stat_result, share: int, load: Callable[[], Network]
) -> Network:
    """The network, executed with one thread where that is faster than with its ``share``. ``load``
    reads it once more, with one thread; ``read_after`` is what its file was before it was read.

    A network that may keep state between calls has one session.
    """
    if share < 2 or network.device != "cpu" or network.platform not in DIVIDE or verdict.way is Way.ONE:
        return network
    if _bytes(path) > LARGE or (row := made_up(network)) is None:
        return network
    began = time.perf_counter()
    network.run(row)
    if time.perf_counter() - began > LONG:
        return network
    one = load()
    if _identity(path.stat()) != _identity(read_after):
        return network  # the other session may be of another network
    warm(one, verdict)
    return replace(network, run=Faster(one.run, network.run))


def _bytes(path: Path) -> float:
    """The bytes of a network in a file and those beside it."""
    weights = path.with_suffix(".bin")
    size = path.stat().st_size + (weights.stat().st_size if path.suffix == ".xml" and weights.is_file() else 0)
    if size <= LARGE and path.suffix.lower() == ".onnx" and b"location" in path.read_bytes():
        return math.inf  # the key of weights in other files
    return size


def _identity(file: os.stat_result) -> tuple[int, int, int, int]:
    return file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns


Run = Callable[[Sequence[Array]], Sequence[Array]]


@dataclass
class _Size:
    """What is known of batches of about as many rows."""

    times: list[float] = field(default_factory=lambda: [math.inf, math.inf])
    """The mean seconds for a row by each of the functions; infinite: none yet."""
    saved: float = 0.0
    """Seconds that trials may cost. Each size has its own: those of a cheap one would leave nothing
    for the others."""


class Faster:
    """Executes by the first of two functions, or by the second where that is faster. It is for one
    call at a time."""

    def __init__(self, first: Run, second: Run, clock: Callable[[], float] = time.perf_counter) -> None:
        self._runs = (first, second)
        self._clock = clock
        self._sizes: dict[int, _Size] = {}

    def __call__(self, inputs: Sequence[Array]) -> Sequence[Array]:
        rows = len(inputs[0]) if inputs and inputs[0].ndim else 1
        size = self._sizes.setdefault(rows.bit_length(), _Size())
        which, trial = self._choose(size, rows)
        began = self._clock()
        outputs = self._runs[which](inputs)
        took = self._clock() - began
        mean, now = size.times[which], took / max(rows, 1)
        if mean > 2 * now:  # none yet, or executions that were held up
            size.times[which] = now
        else:
            size.times[which] = mean + FADE * (min(now, MOST * mean) - mean)
        if not trial:
            size.saved += TRIALS * took
        return outputs

    def _choose(self, size: _Size, rows: int) -> tuple[int, bool]:
        """The faster one, or the other one for a trial that can be paid."""
        times = size.times
        if math.inf in times:
            return times.index(math.inf), True
        best = 0 if times[0] <= WORTH * times[1] else 1
        cost = rows * min(max(times[1 - best] - times[best], LEAST * times[best]), MOST * times[best])
        if size.saved < cost:
            return best, False
        size.saved -= cost
        return 1 - best, True

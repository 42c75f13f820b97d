"""What a reader returns: a function on arrays, and what the file says about it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..tensors import Array


class Unusable(Exception):
    """A file cannot be served; the text has the file, the reason, and what is expected."""


@dataclass(frozen=True)
class Port:
    """An input or output of a network."""

    name: str
    datatype: str
    sizes: tuple[int | str, ...] | None
    """A number for a size that is fixed, a name for one that is open: equal names are equal sizes,
    and "" is a size of its own. None: the file does not even tell how many sizes there are."""
    labels: Sequence[str] = ()

    @property
    def shape(self) -> list[int]:
        """The shape in the words of a declaration, where open sizes are -1."""
        return [size if isinstance(size, int) else -1 for size in self.sizes or ()]

    def __str__(self) -> str:
        if self.sizes is None:
            return f"{self.name} {self.datatype} of any shape"
        return f"{self.name} {self.datatype} [{', '.join(str(one or '?') for one in self.sizes)}]"


@dataclass(frozen=True)
class Network:
    """A model file, read and ready to execute."""

    platform: str
    """The runtime, as "onnxruntime"."""
    device: str
    """The device on which it verifiably executes, as "cpu" or "cuda:0"."""
    inputs: Sequence[Port]
    outputs: Sequence[Port]
    run: Callable[[Sequence[Array]], Sequence[Array]]
    """The outputs for the inputs, both in order. One call at a time, from any thread: see lock."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """What the exporter wrote into the file."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held during an execution by models that share the network."""


@dataclass(frozen=True)
class Options:
    """How a file is to be read."""

    device: str = "auto"
    """"cpu", "cuda:0", "openvino:GPU"; "auto" takes the best one that works."""
    trust: bool = False
    """Files that execute code while they are read are allowed."""
    threads: int = 0
    """Threads of one execution; 0: the share of this process, see :func:`processors`."""

    @property
    def share(self) -> int:
        """The threads of one execution."""
        return self.threads or processors()


def processors() -> int:
    """How many processors this process may use.

    The supervisor says it in $SHIVA_CPUS, where several processes share the machine; otherwise all
    that the process may run on count.
    """
    told = os.environ.get("SHIVA_CPUS", "")
    try:
        share = float(told or "0")
    except ValueError as e:
        raise Unusable(f"SHIVA_CPUS={told}: expected a number of processors") from e
    return max(1, round(share)) if told else len(os.sched_getaffinity(0))


def line(error: Exception | None) -> str:
    """An exception in one line: runtimes add traces and paths of their own sources."""
    text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return text if len(text) <= 300 else text[:297] + "..."

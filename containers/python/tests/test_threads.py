"""Networks that are executed with one thread or with several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from shiva_container import threads
from shiva_container.files.network import Network, Port
from shiva_container.proof import Verdict, Way
from shiva_container.tensors import Array


class Machine:
    """Two ways to execute, which take as long as they are told."""

    def __init__(self, one: Callable[[int], float], several: Callable[[int], float]) -> None:
        self.now = 0.0
        self.ran: list[int] = []
        self.faster = threads.Faster(self.way(0, one), self.way(1, several), lambda: self.now)

    def way(self, number: int, takes: Callable[[int], float]) -> threads.Run:
        def run(inputs: Sequence[Array]) -> Sequence[Array]:
            self.now += takes(len(inputs[0]))
            self.ran.append(number)
            return inputs

        return run

    def ask(self, rows: int, times: int = 1000) -> float:
        """How many of some batches were executed by the second way."""
        self.ran.clear()
        for _ in range(times):
            self.faster([np.zeros(rows)])
        return sum(self.ran) / len(self.ran)


def test_each_size_by_the_faster_one() -> None:
    machine = Machine(lambda rows: rows, lambda rows: 1.2 + 0.6 * rows)
    for _ in range(2):
        assert machine.ask(1) < 0.1
        assert machine.ask(8) > 0.9
    # Nobody gains from the other threads: they are left to others.
    assert Machine(lambda rows: 1.02, lambda rows: 1).ask(4) < 0.1


def test_trials_cost_little() -> None:
    for other in (1.1, 1.5, 3, 10):
        machine = Machine(lambda rows, other=other: other, lambda rows: 1.0)
        machine.ask(1)
        before = machine.now
        machine.ask(1, 20000)
        assert machine.now - before <= 20000 * 1.004
        assert machine.ran.count(0) >= 20000 / 3000


def test_what_others_do_changes() -> None:
    busy = False
    machine = Machine(lambda rows: 1.0, lambda rows: 3.0 if busy else 0.6)
    assert machine.ask(8) > 0.9
    busy = True
    machine.ask(8)
    assert machine.ask(8) < 0.1
    busy = False
    machine.ask(8, 20000)
    assert machine.ask(8) > 0.9


def test_one_execution_that_was_held_up() -> None:
    long = False
    machine = Machine(lambda rows: 1.0, lambda rows: 1000.0 if long else 0.6)
    machine.ask(1)
    long = True
    machine.ask(1, 1)
    long = False
    machine.ask(1, 10000)
    assert machine.ask(1) > 0.9


def test_first_execution_that_was_held_up() -> None:
    """Also where smaller batches come between, for which trials cost less."""
    late = iter([1000.0])
    machine = Machine(lambda rows: rows, lambda rows: next(late, 0.6 * rows))
    machine.ask(8, 2)
    for _ in range(20000):
        machine.ask(1, 1)
        machine.ask(8, 1)
    assert machine.ask(8) > 0.9


def network(number: int) -> Network:
    """A network that answers its number of threads."""
    port = Port("x", "FP32", ("rows", 4))

    def run(inputs: Sequence[Array]) -> Sequence[Array]:
        return [np.full(inputs[0].shape, number, np.float32)]

    return Network("onnxruntime", "cpu", [port], [port], run)


@pytest.mark.parametrize(
    "why",
    [
        "",
        "one processor",
        "another device",
        "another runtime",
        "state",
        "a large file",
        "weights in another file",
        "a file that is replaced meanwhile",
        "a slow network",
    ],
)
def test_who_has_two_sessions(why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "net.onnx"
    file.write_bytes(b"location" if why == "weights in another file" else b"xx")
    whole = replace(
        network(4),
        device="cuda:0" if why == "another device" else "cpu",
        platform="sklearn" if why == "another runtime" else "onnxruntime",
    )
    if why == "a large file":
        monkeypatch.setattr(threads, "LARGE", 1)
    if why == "a slow network":
        monkeypatch.setattr(threads, "LONG", 0.0)
    loaded: list[int] = []

    def load() -> Network:
        loaded.append(1)
        if why == "a file that is replaced meanwhile":
            other = tmp_path / "other"
            other.write_bytes(b"yy")
            other.rename(file)
        return network(1)

    verdict = Verdict(Way.ONE if why == "state" else Way.ROWS, "")
    divided = threads.divided(whole, verdict, file, file.stat(), 1 if why == "one processor" else 4, load)
    x = [np.zeros((1, 4), np.float32)]
    answered = {float(divided.run(x)[0][0, 0]) for _ in range(4)}
    if why:
        assert divided is whole
        assert answered == {4.0}
        assert bool(loaded) == (why == "a file that is replaced meanwhile")
    else:
        assert answered == {1.0, 4.0}
        assert loaded == [1]
        assert divided.lock is whole.lock

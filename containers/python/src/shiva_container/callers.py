"""Servers whose clients ask again on each answer: when a shared container waits for them.

It is ``scheduler/rounds/callers.go`` of the server's repository in Python, where the reasons are.
"""

from __future__ import annotations

from dataclasses import dataclass

MOSTLY = 0.4
"""A server is waited for that asks after a larger share of its answers."""
MOST_LATER = 1.2
"""Where a server that does not ask on answer has rows, they are later by this factor at most."""
_HABIT_FADE = 8
"""Answers over which a habit is a mean."""
_COSTS_FADE = 32
"""Executions over which costs are sums."""
_ONE_SIZE = 1e-3
"""A squared deviation of the rows of executions, relative to the mean, that tells nothing."""


@dataclass
class Habit:
    """How a server offers rows after its answers."""

    executing: int = 0
    expected: bool = False
    answered: float = 0.0
    asks: float = 0.0
    after: float = 0.0
    deviation: float = 0.0

    def observe(self, asks: bool) -> None:
        """Count an answer, and whether an offer followed it in time, and none preceded it."""
        self.asks += (asks - self.asks) / _HABIT_FADE

    def answers(self, wants: bool, now: float) -> None:
        """Count the answer to a batch; ``wants``: the server has offered rows meanwhile."""
        self.executing -= 1
        if self.executing:
            return
        if wants:
            self.observe(False)
        else:
            self.expected, self.answered = True, now

    def returns(self, now: float, execution: float) -> None:
        """Count an offer; one that is later than an execution takes is nothing to wait for."""
        if not self.expected:
            return
        self.expected = False
        after = now - self.answered
        if after > execution:
            self.observe(False)
            return
        if not self.after:
            self.after, self.deviation = after, after / 2
        self.observe(True)
        self.deviation += (abs(after - self.after) - self.deviation) / _HABIT_FADE
        self.after += (after - self.after) / _HABIT_FADE

    @property
    def end(self) -> float:
        """Until when the next offer is expected."""
        return self.answered + self.after + 4 * self.deviation


@dataclass
class Costs:
    """A line through the times of the latest executions by their rows."""

    n: float = 0.0
    rows: float = 0.0
    took: float = 0.0
    square: float = 0.0
    product: float = 0.0

    def add(self, rows: int, took: float) -> None:
        """Count an execution."""
        keep = 1 - 1 / _COSTS_FADE
        self.n = self.n * keep + 1
        self.rows = self.rows * keep + rows
        self.took = self.took * keep + took
        self.square = self.square * keep + rows * rows
        self.product = self.product * keep + rows * took

    def line(self) -> tuple[float, float]:
        """The time that does not depend on the rows, and that of each; 0 if they hardly vary."""
        if not self.n:
            return 0.0, 0.0
        x, y, each = self.rows / self.n, self.took / self.n, 0.0
        spread = self.square / self.n - x * x
        if spread > _ONE_SIZE * x * x:
            each = min(max(0.0, (self.product / self.n - x * y) / spread), y / x)
        return y - each * x, each

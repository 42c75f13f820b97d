"""The cost of a small request in calls, which can be counted, and which make up its time."""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest
from echo_model import X, Y, ask
from fake_server import Fake
from shiva_container import Container, model, workers

FUNCTIONS = 28
"""The most Python functions called, besides the model's own."""
CLOCK = 4
"""The most readings of the clock."""


def test_what_a_small_request_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each request another process had the core: a cold call takes a microsecond."""
    monkeypatch.setattr(workers, "QUICK_SECONDS", 10.0)  # whatever else the machine does
    monkeypatch.setattr(workers, "LATE_SECONDS", 10.0)
    rounds: list[tuple[list[str], Counter[str]]] = [([], Counter())]
    """The calls from one wait to the next: functions of Python, and others by their names."""

    def function(x: Any) -> Any:
        return x

    def note(frame: FrameType, event: str, called: Any) -> None:
        if event == "call" and frame.f_code is not function.__code__:
            rounds[-1][0].append(frame.f_code.co_name)
        elif event == "c_call":
            if called.__name__ == "poll":
                rounds.append(([], Counter()))
            rounds[-1][1][called.__name__] += 1

    quick = model(name="quick", inputs=[X], outputs=[Y])(function)
    quick.warmup(lambda: sys.setprofile(note))
    with Fake() as fake, Container(quick, servers=fake.endpoint):
        peer, _ = fake.hello()
        for _ in range(30):
            fake.result(ask(fake, peer))
    requests = [one for one in rounds if "receive" in one[0] and "compute" in one[0]]
    called, others = min(requests, key=lambda request: len(request[0]))
    assert len(called) <= FUNCTIONS, called
    assert others["monotonic"] <= CLOCK
    assert {name: others[name] for name in ("poll", "recv", "recv_into", "send", "sendmsg")} == {
        "poll": 1,
        "recv": 1,
        "recv_into": 0,
        "send": 1,
        "sendmsg": 0,
    }

"""A model that several servers share: grants, and rows of several servers in one call."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from echo_model import Held, X, Y, ask
from fake_server import Fake
from shiva_container import Batch, Container, Tensor, model, rounds
from shiva_container.rounds import LEAD, Execution, Grant, Seat, Sent, Table

Shared = Table[int]


def table(lanes: int = 1, most: int = 128, seats: int = 2) -> tuple[Shared, list[Seat]]:
    one: Shared = Table(lanes, most, lambda a, b: a >= 0 and b >= 0)
    return one, [one.join(grants=True) for _ in range(seats)]


def granted(one: Shared, now: float, count: int) -> list[Grant]:
    grants, execution, _ = one.next(now)
    assert len(grants) == count
    assert execution is None
    return grants


def executed(one: Shared, now: float, rows: int) -> Execution[int]:
    grants, execution, _ = one.next(now)
    assert not grants
    assert execution is not None
    assert execution.rows == rows
    return execution


def test_all_servers_with_rows_are_granted_the_same_execution() -> None:
    one, (a, b, _) = table(seats=3)
    one.offer(a, 6, 0.01, 0)
    one.offer(b, 3, 0, 0)
    first, second = granted(one, 0, 2)
    assert (first.here, first.elsewhere, second.here, second.elsewhere) == (6, 3, 3, 6)
    one.arrive(Sent(a, 5, 1, best=8), first.number, 1, 0.001)
    assert one.next(0.001)[1] is None
    one.arrive(Sent(b, 3, 2, best=8), second.number, 0, 0.001)
    execution = executed(one, 0.001, 8)
    assert one.next(0.001)[:2] == ([], None)
    one.done(execution, 0.005)
    (again,) = granted(one, 0.005, 1)
    assert (again.seat, again.target) == (a, 8)


def loop(
    one: Shared, seats: list[Seat], count: int, now: float, quiet: tuple[Seat, ...] = ()
) -> tuple[list[int], float]:
    """The rows of executions of 20 ms + 1 ms a row; 1 ms later their servers offer a row again."""
    offers = {seat: now + 0.002 * i for i, seat in enumerate(seats) if seat not in quiet}
    sizes: list[int] = []
    while len(sizes) < count:
        for seat in [seat for seat, at in offers.items() if at <= now]:
            del offers[seat]
            one.offer(seat, 1, 0, now)
        grants, execution, wake = one.next(now)
        for grant in grants:
            one.arrive(Sent(grant.seat, 1, 0), grant.number, 0, now)
        if execution is not None:
            sizes.append(execution.rows)
            now += 0.02 + 0.001 * execution.rows
            for seat in [seat for seat, at in offers.items() if at < now]:
                one.offer(seat, 1, 0, offers.pop(seat))
            one.done(execution, now)
            offers |= {sent.seat: now + 0.001 for sent in execution.batches if sent.seat not in quiet}
        elif not grants:
            now = min([wake, *offers.values()])
    return sizes, now


def test_servers_whose_clients_ask_on_each_answer_share_executions() -> None:
    one, seats = table(seats=3)
    sizes, now = loop(one, seats, 50, 0)
    assert sizes[0] == 1
    assert sizes[-10:] == [3] * 10
    # One of them does not ask again: it is waited for once, and no longer than an execution.
    sizes, end = loop(one, seats, 10, now, (seats[0],))
    assert sizes[-8:] == [2] * 8
    assert end - now < 10 * 0.023 + 0.02
    # After that it counts for nothing, however many rows it had: the others are waited for.
    seats[0].mean = 50
    one.offer(seats[1], 1, 0.04, end + 0.0005)
    grants, _, wake = one.next(end + 0.0005)
    assert not grants
    assert wake >= end + 0.001


def test_a_server_that_does_not_answer_costs_the_others_their_patience_once() -> None:
    one, (a, b) = table()
    one.offer(a, 1, 0, 0)
    one.offer(b, 1, 0, 0)
    first, _ = granted(one, 0, 2)
    one.arrive(Sent(a, 1, 1), first.number, 0, 0.001)
    wake = one.next(0.001)[2]
    assert 0.001 < wake <= 0.02
    one.done(executed(one, wake, 1), 0.03)
    one.offer(a, 1, 0, 0.03)
    one.offer(b, 1, 0, 0.03)
    assert [grant.seat for grant in granted(one, 0.03, 1)] == [a]
    one.offer(b, 1, 0, 1.1)
    assert [grant.seat for grant in granted(one, 1.1, 1)] == [b]


def test_an_execution_has_at_most_so_many_rows_and_what_fits() -> None:
    one, (a, b, c) = table(most=4, seats=3)
    for seat, rows in ((a, 3), (b, 2), (c, 1)):
        one.arrive(Sent(seat, rows, 1), 0, 0, 0)
    one.done(executed(one, 0, 4), 0.007)
    execution = executed(one, 0.007, 2)
    assert execution.queued(execution.batches[0]) == pytest.approx(0.007)
    one.done(execution, 0.008)
    one.arrive(Sent(a, 1, -1), 0, 0, 0.008)
    one.arrive(Sent(b, 1, 1), 0, 0, 0.008)
    one.done(executed(one, 0.008, 1), 0.009)
    executed(one, 0.009, 1)


def test_a_round_waits_once_for_a_server_whose_rows_start_over() -> None:
    one, (a, b) = table()
    now = 0.0
    for _ in range(8):
        one.offer(a, 4, 0, now)
        one.offer(b, 4, 0, now)
        for grant in granted(one, now, 2):
            one.arrive(Sent(grant.seat, 4, 1), grant.number, 0, now)
        execution = executed(one, now, 8)
        now += 0.02
        one.done(execution, now)
        now += 0.001
    one.offer(a, 4, 0, now)
    one.offer(b, 4, 0, now)
    first, second = granted(one, now, 2)
    one.arrive(Sent(a, 4, 1), first.number, 2, now)
    one.give_back(b, second.number, 4, now)
    grants, none, wake = one.next(now)
    assert not grants
    assert none is None
    assert wake >= now + 0.001
    one.offer(b, 4, 0, now + 0.001)
    (again,) = granted(one, now + 0.001, 1)
    assert (again.seat, again.here) == (b, 4)
    one.give_back(b, again.number, 4, now + 0.001)
    executed(one, now + 0.001, 4)


def test_what_a_server_says_once_tells_little_of_the_rows_that_it_has_then() -> None:
    one, (a, b) = table()

    def claim(rows: int, left: int) -> int:
        one.offer(a, 1, 0, 0)
        one.offer(b, 1, 0, 0)
        first, second = granted(one, 0, 2)
        if rows:
            one.arrive(Sent(a, rows, 1), first.number, left, 0)
        else:
            one.give_back(a, first.number, 0, 0)
        one.arrive(Sent(b, 20, 2), second.number, 0, 0)
        one.done(executed(one, 0, rows + 20), 0)
        assert second.elsewhere == first.here
        return first.here

    for _ in range(4):
        claim(20, 60)
    assert [claim(8, 0), claim(0, 0), claim(20, 60), claim(20, 60)] == [80, 71, 62, 64]
    one.offer(a, 1 << 40, 0, 0)
    for _ in range(16):
        claim(20, 60)
    assert 76 <= claim(20, 60) <= 80


def test_where_there_is_room_for_one_the_most_urgent_is_not_far_ahead() -> None:
    one, seats = table(most=1, seats=3)
    served, now = [0, 0, 0], 0.0
    for _ in range(300):
        for i, seat in enumerate(seats):
            one.offer(seat, 1, 0.05 / (1 + 9 * i), now)
        (grant,) = granted(one, now, 1)
        served[seats.index(grant.seat)] += 1
        one.arrive(Sent(grant.seat, 1, 1), grant.number, 0, now)
        execution = executed(one, now, 1)
        now += 0.001
        one.done(execution, now)
    assert served[0] >= 95
    assert 100 <= served[2] <= 100 + 2 * LEAD


def test_a_batch_that_claims_many_rows_lets_no_server_be_ahead_for_longer() -> None:
    one, (liar, urgent, patient) = table(most=1, seats=3)
    one.arrive(Sent(liar, 1 << 40, 1), 0, 0, 0.0)
    one.done(executed(one, 0.0, 1), 0.001)
    for round in range(1, 101):
        now = round * 0.001
        one.offer(urgent, 1, 1e-9, now)
        one.offer(patient, 1, 0.0, now)
        (grant,) = granted(one, now, 1)
        one.arrive(Sent(grant.seat, 1, 1), grant.number, 0, now)
        one.done(executed(one, now, 1), now + 0.001)
    assert patient.served >= 40


@pytest.mark.parametrize("seed", range(60))
def test_whatever_servers_do_each_batch_is_executed_once(seed: int) -> None:
    rng = random.Random(seed)
    lanes, most = rng.randint(1, 3), rng.randint(1, 8)
    one, seats = table(lanes, most, rng.randint(1, 5))
    running: list[Execution[int]] = []
    sent, done, now = 0, set[int](), 0.0

    def send(seat: Seat, grant: int) -> None:
        nonlocal sent
        sent += 1
        one.arrive(Sent(seat, rng.randint(1, most), sent, rng.randrange(9)), grant, rng.randrange(3), now)

    def turn(*, behave: bool) -> None:
        while True:
            grants, execution, _ = one.next(now)
            for grant in grants:
                if rng.randrange(4):
                    send(grant.seat, grant.number)
                elif behave:
                    one.give_back(grant.seat, grant.number, rng.randrange(3), now)
            if execution is not None:
                running.append(execution)
                bodies = [batch.body for batch in execution.batches]
                assert not done.intersection(bodies)
                done.update(bodies)
                assert len(running) <= lanes
                assert execution.rows <= most
            if not grants and execution is None:
                return

    for _ in range(200):
        now += rng.random() / 500
        seat = rng.choice(seats)
        match rng.randrange(5):
            case 0 | 1:
                one.offer(seat, rng.randrange(9), rng.random() / 20, now)
            case 2:
                send(seat, rng.randrange(30))
            case 3:
                one.give_back(seat, rng.randrange(30), rng.randrange(3), now)
            case _ if running:
                one.done(running.pop(0), now)
        turn(behave=False)
    for _ in range(4 * sent):
        now += 2
        while running:
            one.done(running.pop(), now)
        turn(behave=True)
        if one.idle:
            break
    assert one.idle
    assert len(done) == sent


def until(test: Callable[[], Any]) -> None:
    """Wait for an action of the container."""
    end = time.monotonic() + 20
    while not test():
        assert time.monotonic() < end
        time.sleep(0.002)


def seats(container: Container) -> list[Seat]:
    return list(container._runners[0].arbiter._links)


def pending(container: Container) -> int:
    return sum(link.pending for link in container._links)


def offer(fake: Fake, peer: bytes, **head: object) -> None:
    fake.send(peer, b"offer", json.dumps(head).encode())


def told(fake: Fake, count: int) -> dict[str, Any]:
    head: dict[str, Any] = json.loads(fake.wait_for(b"grant", count)[1][1])
    return head


def order(fake: Fake) -> list[bytes]:
    """The grants and results that a server has received."""
    return [frames[0] for _, _, frames in fake._seen if frames[0] in (b"grant", b"result")]


def row(value: float) -> bytes:
    return np.array([[value, -value]], "<f4").tobytes()


def test_rows_of_two_servers_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer goes where its rows came from, with its own errors and parameters."""
    monkeypatch.setattr(rounds, "_LEAST_PATIENCE", 20.0)  # however slow this machine is
    inside, leave, calls = threading.Event(), threading.Event(), list[int]()

    @model(name="shared", inputs=[X], outputs=[Y])
    def shared(x: Any, batch: Batch) -> Any:
        calls.append(len(x))
        inside.set()
        assert leave.wait(60)
        for at in range(len(x)):
            assert batch.request_of(at).parameters.get("of", x[at, 0]) == x[at, 0]
            if x[at, 0] == 7:
                batch.fail(at, "too dark")
        return 2 * x

    with (
        Fake(grants=True) as a,
        Fake(grants=True) as b,
        Container(shared, servers=[a.endpoint, b.endpoint]) as container,
    ):
        (first, _), (second, _) = a.hello(), b.hello()
        assert told(a, 1) == told(b, 1) == {"each": True}
        busy = ask(a, first)
        assert inside.wait(20)
        offer(a, first, rows=2, due_ms=50.5)
        offer(b, second, rows=1)
        until(lambda: all(seat.wants for seat in seats(container)))
        leave.set()
        assert a.result(busy)[0].get("together") is None
        here, there = told(a, 2), told(b, 2)
        assert (here["here"], here["elsewhere"], there["here"], there["elsewhere"]) == (2, 1, 1, 2)
        one = a.batch(
            first, 2, [("x", "FP32", [2, 2], row(1) + row(7))], grant=here["grant"], parameters=[{"of": 1}, {"of": 7}]
        )
        other = b.batch(second, 1, [("x", "FP32", [1, 2], row(3))], grant=there["grant"], left=4)
        head, frames = a.result(one)
        assert frames == [row(2) + row(14)]
        assert (head["together"], head["errors"]) == (3, [{"row": 1, "message": "too dark"}])
        head, frames = b.result(other)
        assert frames == [row(6)]
        assert "errors" not in head
        assert calls == [1, 3]
        assert told(b, 3)["here"] == 5
        # The next execution is granted before this one is answered.
        assert order(a) == [b"grant", b"grant", b"result", b"result"]
        assert order(b) == [b"grant", b"grant", b"grant", b"result"]


def test_numbers_of_any_size_from_one_server_keep_no_other_from_its_answer() -> None:
    @model(name="shared", inputs=[X], outputs=[Y])
    def shared(x: Any) -> Any:
        return x

    huge = 10**400
    with (
        Fake(grants=True) as a,
        Fake(grants=True) as b,
        Container(shared, servers=[a.endpoint, b.endpoint]) as container,
    ):
        (first, _), (second, _) = a.hello(), b.hello()
        assert told(a, 1) == told(b, 1) == {"each": True}
        offer(a, first, rows=huge, due_ms=huge)
        grant = told(a, 2)["grant"]
        offer(a, first, **{"pass": grant, "rows": huge})
        offer(a, first, rows=-huge, due_ms=-huge)
        one = a.batch(first, 1, [("x", "FP32", [1, 2], row(1))], grant=told(a, 3)["grant"], best=huge, left=huge)
        assert a.result(one)[1] == [row(1)]
        until(lambda: container._runners[0].arbiter._table._busy == 0)
        other = b.batch(second, 1, [("x", "FP32", [1, 2], row(3))])
        assert b.result(other)[1] == [row(3)]


def test_requests_without_inputs_of_two_servers_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_LEAST_PATIENCE", 20.0)
    inside, leave = threading.Event(), threading.Event()

    @model(name="silent", inputs=[], outputs=[Tensor("y", "FP32", [-1])], batched=True)
    def silent(batch: Batch) -> Any:
        inside.set()
        assert leave.wait(60)
        return np.float32([one.parameters.get("n", 0) for one in batch.requests])

    with (
        Fake(grants=True) as a,
        Fake(grants=True) as b,
        Container(silent, servers=[a.endpoint, b.endpoint]) as container,
    ):
        (first, _), (second, _) = a.hello(), b.hello()
        assert told(a, 1) == told(b, 1) == {"each": True}
        busy = a.batch(first, 1, [])
        assert inside.wait(20)
        one = a.batch(first, 2, [], parameters=[{"n": 1}, {"n": 2}])
        other = b.batch(second, 1, [], parameters=[{"n": 3}])
        until(lambda: pending(container) == 3)
        leave.set()
        a.result(busy)
        head, (y,) = a.result(one)
        assert head["together"] == 3
        assert np.frombuffer(y, "<f4").tolist() == [1, 2]
        assert np.frombuffer(b.result(other)[1][0], "<f4").tolist() == [3]


def test_a_call_that_fails_is_made_again_for_each_server() -> None:
    inside, leave = threading.Event(), threading.Event()

    @model(name="poisoned", inputs=[X], outputs=[Y])
    def poisoned(x: Any) -> Any:
        inside.set()
        assert leave.wait(60)
        if (x[:, 0] == 7).any():
            raise ValueError("poisoned")
        return x

    with (
        Fake(grants=True) as a,
        Fake(grants=True) as b,
        Container(poisoned, servers=[a.endpoint, b.endpoint]) as container,
    ):
        (first, _), (second, _) = a.hello(), b.hello()
        assert told(a, 1) == told(b, 1) == {"each": True}
        busy = ask(a, first)
        assert inside.wait(20)
        bad = a.batch(first, 1, [("x", "FP32", [1, 2], row(7))])
        good = b.batch(second, 1, [("x", "FP32", [1, 2], row(3))])
        wide = b.batch(second, 1, [("x", "FP32", [1, 3], b"")])
        until(lambda: pending(container) == 4)
        leave.set()
        assert "errors" not in a.result(busy)[0]
        assert "poisoned" in a.result(bad)[0]["error"]
        assert b.result(good)[1] == [row(3)]
        assert "error" in b.result(wide)[0]


def test_ragged_outputs_and_async_functions() -> None:
    inside, leave = threading.Event(), threading.Event()
    boxes, count = Tensor("boxes", "FP32", [-1, 1], ragged="count"), Tensor("count", "INT64", [-1])

    @model(name="ragged", inputs=[X], outputs=[boxes, count])
    async def ragged(x: Any) -> Any:
        inside.set()
        assert leave.wait(60)
        return [np.full((int(one[0]), 1), one[1], "f4") for one in x]

    with (
        Fake(grants=True, batched=True) as a,
        Fake(grants=True, batched=True) as b,
        Container(ragged, servers=[a.endpoint, b.endpoint]) as container,
    ):
        (first, _), (second, _) = a.hello(), b.hello()
        assert told(a, 1) == told(b, 1) == {"each": True}
        busy = ask(a, first)
        assert inside.wait(20)
        one = a.batch(first, 2, [("x", "FP32", [2, 2], row(0) + row(3))])
        other = b.batch(second, 1, [("x", "FP32", [1, 2], row(2))])
        until(lambda: pending(container) == 3)
        leave.set()
        a.result(busy)
        head, frames = a.result(one)
        assert np.frombuffer(frames[0], "<f4").tolist() == [-3, -3, -3]
        assert np.frombuffer(frames[1], "<i8").tolist() == [0, 3]
        assert head["together"] == 3
        assert np.frombuffer(b.result(other)[1][0], "<f4").tolist() == [-2, -2]


def test_one_server_and_servers_that_know_no_grants() -> None:
    """A single server is told nothing; alongside one without grants the other gets grants."""
    held = Held()
    held.leave.set()
    with Fake(grants=True) as a, Fake() as old, Container(held.model, servers=[a.endpoint, old.endpoint]):
        (first, head), (second, _) = a.hello(), old.hello()
        assert head["grants"] is True
        assert told(a, 1) == {"each": True}
        offer(a, first, rows=1)
        one = a.batch(first, 1, [("x", "FP32", [1, 2], row(1))], grant=told(a, 2)["grant"])
        assert a.result(one)[1] == [row(1)]
        assert old.result(ask(old, second))[0]["outputs"]
        assert not old.seen(b"grant")
        old.goodbye(second, reconnect=False)
        assert told(a, 3) == {"each": False}
        assert a.result(ask(a, first))[0]["outputs"]
    with Fake(grants=True) as a, Container(held.model, servers=a.endpoint):
        first, _ = a.hello()
        assert a.result(ask(a, first))[0]["outputs"]
        assert not a.seen(b"grant")


def test_a_server_that_offers_and_never_sends_keeps_nobody() -> None:
    held = Held()
    held.leave.set()
    with Fake(grants=True) as a, Fake(grants=True) as b, Container(held.model, servers=[a.endpoint, b.endpoint]):
        (first, _), (second, _) = a.hello(), b.hello()
        assert told(a, 1) == told(b, 1) == {"each": True}
        for n in range(2, 12):
            offer(b, second, rows=10**9, due_ms=0.001)
            offer(a, first, rows=1)
            one = a.batch(first, 1, [("x", "FP32", [1, 2], row(n))], grant=told(a, n)["grant"])
            assert a.result(one)[1] == [row(n)]
        b.send(second, b"offer", b"no JSON")
        b.hello(2)

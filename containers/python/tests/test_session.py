from __future__ import annotations

import json
from typing import Any

import pytest
from shiva_container import wire
from shiva_container.session import SLOWEST, End, Lesson, Outcome, Session, State

WELCOME = {"protocol": 4, "server": "s", "heartbeat_ms": 1000, "dead_after_ms": 3000, "max_message_bytes": 100}
ID = b"12345678"


def j(value: Any) -> bytes:
    return json.dumps(value).encode()


def live() -> Session:
    session = Session(b"{}", 0.0)
    session.outbox.clear()
    session.sent(0.0)
    session.receive([b"welcome", j(WELCOME)], 0.0)
    assert session.state is State.LIVE
    return session


def test_hello_comes_first() -> None:
    assert list(Session(b"{}", 0.0).outbox) == [[b"hello", b"{}"]]


def test_no_answer_to_hello() -> None:
    session = Session(b"{}", 5.0)
    session.tick(14.9)
    assert session.ended is None
    session.tick(15.0)
    assert session.ended == End(Outcome.LOST, "no answer to hello for 10 s")


def test_heartbeats_are_no_answer_to_hello() -> None:
    session = Session(b"{}", 0.0)
    session.hear(0, 9.0)
    session.receive([b"heartbeat"], 9.0)
    session.tick(10.0)
    assert session.ended == End(Outcome.LOST, "no answer to hello for 10 s")
    session = Session(b"{}", 0.0)
    session.receive([b"welcome", j(WELCOME)], 9.0)
    session.tick(11.9)
    assert session.ended is None


def test_refused() -> None:
    session = Session(b"{}", 0.0)
    session.receive([b"refused", j({"error": "expected x, got y"})], 0.0)
    assert session.ended == End(Outcome.REFUSED, "expected x, got y")


def test_heartbeats_fill_silence_only() -> None:
    session = live()
    session.tick(0.9)
    assert not session.outbox
    assert session.wake() == 1.0
    session.tick(1.0)
    assert list(session.outbox) == [[b"heartbeat"]]
    session.tick(1.1)
    assert len(session.outbox) == 1, "a heartbeat that has not gone out yet is enough"
    session.outbox.clear()
    session.sent(1.1)
    session.tick(2.0)
    assert not session.outbox
    assert session.wake() == 2.1


PAUSE = [b"heartbeat", b'{"pause":true}']


def test_the_server_is_told_that_something_else_may_hold_the_interpreter() -> None:
    session = live()
    session.excuse(0.5)
    assert list(session.outbox) == [PAUSE]
    session.outbox.clear()
    session.sent(0.5)
    for now in (0.6, 1.0, 1.4):
        session.excuse(now)
    assert not session.outbox, "it was told so a moment ago"
    for now, frames in ((1.5, PAUSE), (5.0, PAUSE), (11.3, PAUSE), (12.4, [b"heartbeat"])):
        session.hear(0, now)
        session.tick(now)
        assert list(session.outbox) == [frames], f"at {now}"
        session.outbox.clear()
        session.sent(now)


def test_a_pause_begins_after_welcome() -> None:
    session = Session(b"{}", 0.0)
    session.excuse(0.0)
    session.outbox.clear()
    session.receive([b"welcome", j(WELCOME)], 0.0)
    assert list(session.outbox) == [PAUSE]
    session = Session(b"{}", 0.0)
    session.excuse(0.0)
    session.receive([b"refused", j({"error": "no"})], 0.0)
    session.excuse(0.0)
    assert list(session.outbox) == [[b"hello", b"{}"]]


@pytest.mark.parametrize(("reconnect", "outcome"), [(True, Outcome.LOST), (False, Outcome.RETIRED)])
def test_a_server_that_has_said_goodbye_may_hang_up_before_the_last_answer(reconnect: bool, outcome: Outcome) -> None:
    session = live()
    session.receive([b"batch", ID, b"{}"], 0.0)
    session.receive([b"goodbye", j({"reason": "old", "reconnect": reconnect})], 0.0)
    assert session.ended is None
    session.lost("connection lost")
    assert session.ended == End(outcome, "old")


def test_feedback_of_any_structure_is_read_or_refused() -> None:
    """Wrong JSON from right JSON: each value in place of each, members and frames left out."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2]}
    right: dict[str, object] = {"application": "a", "user": "u", "rows": 1, "label": 1, "loss": 0.5}
    right |= {"inputs": [tensor], "outputs": [tensor], "truth": [tensor]}
    odd = {**tensor, "shape": ["2"]}
    values = [None, True, -1, 0, 1.5, 10**30, "", "FP32", [], [[]], [None], {}, [tensor] * 3, [odd]]
    heads = [j({**right, key: value}) for key in right for value in values]
    heads += [j({k: v for k, v in right.items() if k != key}) for key in right]
    heads += [j([right]), b"", b"{", b"\xff", b"[" * 100_000]
    read = 0
    for head in heads:
        for frames in range(5):
            delivery = live().receive([b"feedback", head, *[b"01234567"] * frames], 0.0)
            assert isinstance(delivery, Lesson)
            try:
                wire.parse_feedback(delivery.frames)
                read += 1
            except wire.WireError:
                continue
    assert read > 20
    with pytest.raises(wire.WireError):
        wire.parse_feedback([])


def test_silence_of_the_server() -> None:
    session = live()
    session.hear(0, 2.0)
    session.sent(4.9)
    session.tick(4.9)
    assert session.ended is None
    assert session.wake() == 5.0
    session.tick(5.0)
    assert session.ended == End(Outcome.LOST, "the server has been silent for 3 s")


def test_a_large_message_may_take_long_and_its_bytes_are_signs_of_life() -> None:
    session = live()
    for second in range(1, 21):
        session.hear(second * SLOWEST, float(second))
        session.sent(float(second))
        session.tick(float(second))
    assert session.ended is None
    session.hear(0, 21.0)
    assert session.wake() <= 24.0


def test_a_message_that_crawls_is_no_sign_of_life() -> None:
    session = live()
    for second in range(2, 8):
        session.hear(second, float(second))
        session.sent(float(second))
        session.tick(float(second))
    assert session.ended is None
    assert session.wake() == 8.0, "three seconds, and as many of silence"
    session.hear(8, 8.0)
    session.tick(8.0)
    assert session.ended == End(Outcome.LOST, "the server has been silent for 3 s")


def test_a_batch_and_its_answer() -> None:
    session = live()
    delivery = session.receive([b"batch", ID, b"head", b"a", b"b"], 1.0)
    assert delivery is not None
    assert (delivery.batch_id, delivery.header, list(delivery.frames)) == (ID, b"head", [b"a", b"b"])
    assert session.pending == 1
    session.answer(b"87654321", [b"result", b"87654321"])
    assert not session.outbox, "nobody asked that"
    session.answer(ID, [b"result", ID])
    session.answer(ID, [b"result", ID])
    assert list(session.outbox) == [[b"result", ID]]
    assert session.pending == 0


def test_an_answer_larger_than_the_server_takes() -> None:
    session = live()
    session.receive([b"batch", ID, b"{}"], 1.0)
    session.answer(ID, [b"result", ID, bytes(100)])
    (frames,) = session.outbox
    assert json.loads(bytes(frames[2])) == {
        "error": "the result has 114 bytes, the server takes at most 100 in a message"
    }


@pytest.mark.parametrize(
    ("reconnect", "outcome"), [(True, Outcome.LOST), (False, Outcome.RETIRED), (None, Outcome.RETIRED)]
)
def test_goodbye_waits_for_what_is_due(reconnect: bool | None, outcome: Outcome) -> None:
    session = live()
    session.receive([b"batch", ID, b"{}"], 1.0)
    session.receive([b"goodbye", j({"reason": "r", "reconnect": reconnect})], 1.0)
    assert session.ended is None
    session.answer(ID, [b"result", ID])
    assert session.ended == End(outcome, "r")
    assert list(session.outbox) == [[b"result", ID]], "the last answer still has to go out"


def test_draining() -> None:
    session = live()
    session.drain("bye")
    session.drain("bye")
    assert list(session.outbox) == [[b"draining"]]
    assert session.receive([b"batch", ID, b"{}"], 1.0) is not None, "one that was on its way"
    session.answer(ID, [b"result", ID])
    assert session.ended is None
    session.receive([b"goodbye", j({"reason": "drained"})], 1.0)
    assert session.ended == End(Outcome.DRAINED, "bye")


def test_draining_before_welcome_and_at_a_closed_connection() -> None:
    session = Session(b"{}", 0.0)
    session.drain("bye")
    assert session.ended == End(Outcome.DRAINED, "bye")
    session = live()
    session.drain("bye")
    session.lost("gone")
    assert session.ended == End(Outcome.DRAINED, "bye")
    session = live()
    session.receive([b"batch", ID, b"{}"], 1.0)
    session.drain("bye")
    session.lost("gone")
    assert session.ended == End(Outcome.LOST, "gone")


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([b"welcome"], "1 frames, at least 2"),
        ([b"welcome", b"[]"], "JSON object"),
        ([b"welcome", b"\xff"], "not JSON"),
        ([b"welcome", j({**WELCOME, "protocol": 5})], "protocol 4 expected, got 5"),
        ([b"welcome", j({**WELCOME, "heartbeat_ms": 0})], "must be positive"),
        ([b"welcome", j({**WELCOME, "dead_after_ms": "x"})], "must be positive"),
        ([b"batch", ID, b"{}"], "a batch before welcome"),
    ],
)
def test_bad_words_before_welcome(frames: list[bytes], text: str) -> None:
    session = Session(b"{}", 0.0)
    assert session.receive(frames, 0.0) is None
    assert session.ended is not None
    assert session.ended.outcome is Outcome.LOST
    assert text in session.ended.reason


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([b"batch"], "at least 3"),
        ([b"batch", b"123", b"{}"], "8 bytes, got 3"),
        ([b"batch", ID], "at least 3"),
        ([b"goodbye", b"x"], "not JSON"),
        ([b"goodbye", b"[" * 100_000], "not JSON"),
    ],
)
def test_bad_words_later(frames: list[bytes], text: str) -> None:
    session = live()
    session.receive(frames, 0.0)
    assert session.ended is not None
    assert text in session.ended.reason


def test_the_same_batch_twice_ends_the_session() -> None:
    session = live()
    session.receive([b"batch", ID, b"{}"], 0.0)
    session.receive([b"batch", ID, b"{}"], 0.0)
    assert session.ended is not None
    assert "came twice" in session.ended.reason


def test_words_from_the_future_are_ignored() -> None:
    session = live()
    session.receive([b"refused", j({})], 0.0)
    session.receive([b"news", b"x"], 0.0)
    session.receive([b"welcome", b"rubbish"], 0.0)
    assert session.ended is None


def test_a_server_that_would_cut_the_requests_is_left() -> None:
    session = Session(b"{}", 0.0, shapes_matter=True)
    session.receive([b"welcome", j(WELCOME)], 0.0)
    assert session.ended is not None
    assert session.ended.outcome is Outcome.REFUSED
    assert "does not know batched" in session.ended.reason
    session = Session(b"{}", 0.0, shapes_matter=True)
    session.receive([b"welcome", j({**WELCOME, "batched": False, "notes": ["mind the gap"]})], 0.0)
    assert session.state is State.LIVE
    session = Session(b"{}", 0.0)
    session.receive([b"welcome", j(WELCOME)], 0.0)
    assert session.state is State.LIVE

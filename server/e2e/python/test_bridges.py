"""Pydantic models as requests and answers, with the reference package's ShivaBridge and clients."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from conftest import Server, Start
from pydantic import ConfigDict, create_model

from shiva import ShivaBridge, ShivaClientAsync, ShivaMessage


@pytest.fixture(scope="module", autouse=True)
def containers(server: Server, start: Start) -> None:
    start("sdk_models.py")
    start("legacy_container.py", "v3", server.address("v3"), "bridged", "1", "strings")
    server.wait_ready("sub/1", "wide/1", "shout/1", "pairs/1", "clip/1", "bridged/1")


def ask(server: Server, route: str, question: ShivaBridge) -> ShivaMessage:
    async def talk() -> ShivaMessage:
        host, _, port = server.tcp.rpartition(":")
        client = await ShivaClientAsync.create_and_connect(host or "127.0.0.1", int(port))
        try:
            return await client.send_message(question.to_shiva_message(route), timeout=60)
        finally:
            await client.disconnect()

    return asyncio.run(talk())


class Difference(ShivaBridge):
    scores: np.ndarray
    label: str


NINE, TWO = np.array([9, 90], "f4"), np.array([2, 20], "f4")


def difference(server: Server, question: ShivaBridge) -> tuple[Any, Any]:
    """The difference, and the parameters that the container got with the images."""
    message = ask(server, "sub", question)
    assert message.namespace == "sub", message.metadata
    answer = Difference.from_shiva_message(message)
    return answer.scores.tolist(), json.loads(answer.label)


class Forwards(ShivaBridge):
    image: np.ndarray
    mask: np.ndarray


class Backwards(ShivaBridge):
    camera: str = "north"
    gain: float = 1.5
    mask: np.ndarray
    note: str | None = None
    image: np.ndarray
    timeout_ms: float | None = None


class Frame(ShivaBridge):
    t: int
    image: np.ndarray


class Nested(ShivaBridge):
    masks: list[dict[str, Any]]
    frame: Frame


def test_fields_name_the_inputs_in_any_order(server: Server) -> None:
    assert difference(server, Forwards(image=NINE, mask=TWO)) == ([7, 70], {})
    assert difference(server, Backwards(image=NINE, mask=TWO)) == ([7, 70], {"camera": "north", "gain": 1.5})


def test_nested_fields(server: Server) -> None:
    question = Nested(frame=Frame(t=5, image=NINE), masks=[{"mask": TWO}])
    assert difference(server, question) == ([7, 70], {"frame": {"t": 5}})


def test_lists_of_tensors_are_rows(server: Server) -> None:
    class Rows(ShivaBridge):
        mask: np.ndarray
        image: list[np.ndarray]

    class Answer(ShivaBridge):
        scores: np.ndarray
        label: list[str]

    answer = Answer.from_shiva_message(ask(server, "sub", Rows(image=[NINE, TWO], mask=np.ones((2, 2), "f4"))))
    assert answer.scores.tolist() == [[8, 89], [1, 19]]
    assert answer.label == ["{}", "{}"]


def test_255_tensors(server: Server) -> None:
    names = [f"x{i}" for i in range(255)]
    np.random.default_rng(1).shuffle(names)
    wide: Any = create_model("Wide", __base__=ShivaBridge, **{name: (np.ndarray, ...) for name in names})
    tall: Any = create_model("Tall", __base__=ShivaBridge, **{f"y{i}": (np.ndarray, ...) for i in range(255)})
    question = wide(**{name: np.array(int(name[1:]), "i4") for name in names})
    answer = tall.from_shiva_message(ask(server, "wide", question))
    assert [getattr(answer, f"y{i}").item() for i in range(255)] == [i * (254 - i) for i in range(255)]


def test_no_tensor(server: Server) -> None:
    class Question(ShivaBridge):
        text: str
        mark: str
        priority: int | None = None

    class Answer(ShivaBridge):
        loud: str

    assert Answer.from_shiva_message(ask(server, "shout", Question(text="grün", mark="!"))).loud == "GRÜN!"

    class Pairs(ShivaBridge):
        x: list[list[str]]

    pairs = Pairs(x=[["a", "b"], ["c", "d"]])
    assert Pairs.from_shiva_message(ask(server, "pairs", pairs)) == pairs


def test_answers_nest_as_questions(server: Server) -> None:
    """What a model gives back as it got it makes an answer of the question's class."""

    class Pair(ShivaBridge):
        x: list[str]
        note: str | None = None

    class Nested(ShivaBridge):
        inner: Pair
        times: list[float] | None = None  # no output: it is not in the answer

    answer = Nested.from_shiva_message(ask(server, "pairs", Nested(inner=Pair(x=["a", "b"], note="n"), times=[1, 2])))
    assert answer.inner.x == ["a", "b"]

    class Rows(ShivaBridge):
        frames: list[dict[str, list[np.ndarray]]]

    rows = Rows.from_shiva_message(ask(server, "echo_fp32", Rows(frames=[{"x": [NINE, TWO]}])))
    assert [x.tolist() for x in rows.frames[0]["x"]] == [[9, 90], [2, 20]]


def test_an_old_container(server: Server) -> None:
    class Question(ShivaBridge):
        input: str

    class Answer(ShivaBridge):
        output: str

    assert Answer.from_shiva_message(ask(server, "bridged", Question(input="grün"))).output == "nürg"


def test_a_field_that_is_none(server: Server) -> None:
    class Clip(ShivaBridge):
        gain: float | None = None
        x: np.ndarray

    class Frames(ShivaBridge):
        frames: np.ndarray

    for gain, seconds, frames in ((None, 2, [[1] * 4] * 2), (2.5, 1, [[2.5] * 4]), (None, 0, [])):
        answer = Frames.from_shiva_message(ask(server, "clip", Clip(gain=gain, x=np.ones(4 * seconds, "f4"))))
        assert answer.frames.tolist() == frames
        assert answer.frames.shape == (seconds, 4)


def test_what_is_missing_or_too_much_is_named(server: Server) -> None:
    class Half(ShivaBridge):
        image: np.ndarray
        mask: np.ndarray | None = None

    class More(Forwards):
        depth: np.ndarray

    for question, text in (
        (Half(image=NINE), 'input "mask" is missing'),
        (
            More(image=NINE, mask=TWO, depth=TWO),
            'field "depth" refers to a tensor, but matches no input; the model takes "image"',
        ),
    ):
        answer = ask(server, "sub", question)
        assert answer.namespace == "!error"
        assert answer.metadata["type"] == "InvalidInput"
        assert text in answer.metadata["message"]


def test_one_tensor_and_a_model_that_forbids_nothing_else(server: Server) -> None:
    class Question(ShivaBridge):
        x: np.ndarray
        id: str | None = "q1"

    class Answer(ShivaBridge):
        model_config = ConfigDict(protected_namespaces=())
        sum: np.ndarray
        id: str | None = None
        model_name: str

    for id in ("q1", None):
        answer = Answer.from_shiva_message(ask(server, "rows", Question(x=NINE, id=id)))
        assert (answer.sum.tolist(), answer.id, answer.model_name) == (99, id, "rows")


def test_plain_messages_are_as_before(server: Server) -> None:
    answer = ask(server, "sub", Plain(tensors=[NINE, TWO]))
    assert sorted(answer.metadata) == ["__tensors__", "__texts__", "model_name", "model_version", "none", "note"]
    assert answer.tensors[0].tolist() == [7, 70]
    assert json.loads(answer.metadata["__texts__"]["label"]) == {"note": "__tensor__", "none": "null"}


class Plain(ShivaBridge):
    """A message that no bridge made, sent through a bridge."""

    tensors: list[np.ndarray]

    def to_shiva_message(self, namespace: str = "") -> ShivaMessage:
        return ShivaMessage(metadata={"note": "__tensor__", "none": "null"}, tensors=self.tensors, namespace=namespace)



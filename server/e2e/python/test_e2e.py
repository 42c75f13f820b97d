"""A running shivad between Python containers and Python clients, over real sockets."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import sdk_models
from conftest import HERE, Process, Server, Start, expect_error, values, wait
from shiva_container import DATATYPES
from wire_client import SEND, Client, Message


@pytest.fixture(scope="module", autouse=True)
def sdk(server: Server, start: Start) -> Process:
    process = start("sdk_models.py")
    server.wait_ready(*(f"echo_{name.lower()}/1" for name in sdk_models.ECHOED), "rows/1", "fails/1", "one/1", "slow/1")
    server.wait_ready("clip/1", "boxes/1")
    return process


def bits(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Every kind of bit pattern: NaNs with payloads, infinities, subnormals, all integers."""
    dtype = DATATYPES[name]
    random = np.random.default_rng(3)
    if name == "BOOL":
        return random.random(shape) < 0.5
    if name == "LONGDOUBLE":  # ten bytes of value and six of padding that nobody keeps
        return (random.random(shape) * 1e300).astype(dtype) ** 9
    count = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(random.bytes(count), dtype).reshape(shape)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    rows = [x.reshape(-1).view(np.uint8).reshape(-1, x.itemsize) for x in (a, b)]
    if a.dtype.type is np.longdouble:
        rows = [row[:, :10] for row in rows]
    return bool(np.array_equal(*rows))


@pytest.mark.parametrize("name", sdk_models.ECHOED)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (130, 7)], ids=str)
def test_every_dtype_is_echoed_bit_for_bit(client: Client, name: str, shape: tuple[int, ...]) -> None:
    sent = bits(name, shape)
    answer = client.ask(f"echo_{name.lower()}", sent, id=7)
    assert answer.namespace == f"echo_{name.lower()}", answer.metadata
    assert same_bits(answer.tensors[0], sent)
    assert answer.metadata["id"] == 7
    assert answer.metadata["__tensors__"] == ["x"]
    assert answer.metadata["model_name"] == f"echo_{name.lower()}"
    assert answer.metadata["model_version"] == "1"


@pytest.mark.parametrize(("name", "dtype", "code"), [("fp64", "float64", 2), ("int64", "int64", 10)])
def test_the_codes_that_the_reference_never_sends(client: Client, name: str, dtype: str, code: int) -> None:
    sent = np.arange(6, dtype=dtype).reshape(2, 3)
    client.socket.sendall(Message(f"echo_{name}", {}, [sent]).encode({**SEND, dtype: code}))
    answer = client.receive()
    assert values(answer.tensors) == [sent.tolist()], answer.metadata


def test_a_large_tensor(client: Client) -> None:
    sent = bits("UINT8", (3, 2_000_000))
    assert same_bits(client.ask("echo_uint8", sent).tensors[0], sent)


def test_one_row_and_many(client: Client) -> None:
    many = client.ask("rows", np.array([[1, 2], [3, 4], [5, 6]], "f4"))
    assert values(many.tensors) == [[3, 7, 11]], many.metadata
    one = client.ask("rows/1", np.array([1, 2], "f4"))
    assert values(one.tensors) == [3], one.metadata
    assert one.tensors[0].shape == ()
    none = client.ask("one", np.array([1, 2, 3], "i4"), np.array(2, "i4"))
    assert values(none.tensors) == [[2, 4, 6]], none.metadata


def test_tensors_find_their_places_by_name(client: Client) -> None:
    names = {"__tensors__": ["b", "a"]}
    answer = client.ask("one", np.array(2, "i4"), np.array([1, 2, 3], "i4"), **names)
    assert values(answer.tensors) == [[2, 4, 6]], answer.metadata


@pytest.mark.parametrize("length", [0, 3, 4, 16001])
def test_a_clip_is_not_cut(client: Client, length: int) -> None:
    clip = np.arange(length, dtype="f4")
    (frames,) = client.ask("clip", clip).tensors
    assert frames.shape == (length // 4, 4)
    assert frames.reshape(-1).tolist() == clip[: length // 4 * 4].tolist()
    (twice,) = client.ask("clip", clip, np.array(2, "f4"), __tensors__=["x", "gain"]).tensors
    assert twice.tolist() == (2 * frames).tolist()


@pytest.mark.parametrize("counts", [[2], [0], [2, 0, 1], [0, 0], [3] * 40])
def test_each_image_has_its_own_boxes(client: Client, counts: list[int]) -> None:
    images = np.array([[[n, 0], [0, 0]] for n in counts], "u1")
    answer = client.ask("boxes", images)
    assert answer.metadata["__tensors__"] == ["boxes", "scores", "count"]
    boxes, scores, count = answer.tensors
    assert count.tolist() == counts
    assert boxes.shape == (sum(counts), 4)
    for n, mine, score in zip(counts, *(np.split(x, np.cumsum(count)[:-1]) for x in (boxes, scores)), strict=True):
        assert mine.tolist() == [[n] * 4] * n
        assert score.tolist() == list(range(n))
    alone = client.ask("boxes", images[0]).tensors
    assert [x.shape for x in alone] == [(counts[0], 4), (counts[0],), ()]


@pytest.mark.parametrize("counts", [[2], [0], [1], [2, 0, 1], [0, 0], [1, 1]])
def test_ragged_texts_have_the_form_of_all_texts(client: Client, counts: list[int]) -> None:
    """The texts of all rows, nested by their shape; each row has its own list."""

    def expected(counts: list[int]) -> dict[str, Any]:
        names = [f"{i} of {n}" for n in counts for i in range(n)]
        return {"names": names, "tags": [[name, ""] for name in names]}

    images = np.array([[[n, 0], [0, 0]] for n in counts], "u1")
    answer = client.ask("boxes", images)
    assert answer.metadata["__texts__"] == expected(counts), answer.metadata
    assert answer.metadata["__tensors__"] == ["boxes", "scores", "count"]
    assert not {"output", "outputs"} & set(answer.metadata), answer.metadata
    assert client.ask("boxes", images[0]).metadata["__texts__"] == expected(counts[:1])


def test_text_through_the_sdk(client: Client) -> None:
    answer = client.ask("shout", __texts__={"text": ["abc", "grün"]}, parameters={"mark": "!"})
    assert answer.metadata["__texts__"] == {"loud": ["ABC!", "GRÜN!"]}, answer.metadata
    assert client.ask("shout", __texts__={"text": "one"}).metadata["__texts__"] == {"loud": "ONE"}
    expect_error(client.ask("shout", inputs="one"), "InvalidInput", 400, False, "__texts__", '"text" bytes [-1]')


def test_texts_keep_their_shape(client: Client) -> None:
    """Text, and bytes that are not text, of two dimensions."""
    for texts in ([["a", "b"], ["c", ""]], [["null", {"b64": "/wA="}]]):
        answer = client.ask("pairs", __texts__={"x": texts})
        assert answer.metadata["__texts__"] == {"x": texts}, answer.metadata
        assert (answer.tensors, answer.metadata["__tensors__"]) == ([], [])
    assert client.ask("pairs", __texts__={"x": ["a", "b"]}).metadata["__texts__"] == {"x": ["a", "b"]}
    ragged = client.ask("pairs", __texts__={"x": [["a", "b"], ["c"]]})
    expect_error(ragged, "InvalidInput", 400, False, "not alike in length and depth")


def test_bfloat16_goes_out_as_float32(client: Client) -> None:
    answer = client.ask("short", np.array([1.0, -2.5], "f4"))
    assert answer.tensors[0].dtype == np.float32, answer.metadata
    assert values(answer.tensors) == [[1.0, -2.5]]


def test_a_bad_row_fails_alone(client: Client) -> None:
    """Requests that share a batch do not share an error."""
    for i in range(40):
        client.send(Message("rows", {"id": i}, [np.array([-1 if i % 4 == 0 else i, 1], "f4")]))
    for i in range(40):
        answer = client.receive()
        assert answer.metadata["id"] == i
        if i % 4 == 0:
            assert answer.namespace == "!error"
            assert answer.metadata["type"] == "ContainerFailed"
            assert "-1 is negative" in answer.metadata["message"]
        else:
            assert values(answer.tensors) == [i + 1], answer.metadata


def test_an_exception_of_the_model(client: Client) -> None:
    answer = client.ask("fails", np.zeros(2, "f4"), id="x")
    expect_error(answer, "ContainerFailed", 502, False, "ValueError: no such luck")
    assert answer.metadata["id"] == "x"


def test_an_output_that_was_not_declared(client: Client) -> None:
    expect_error(client.ask("wrong", np.zeros(2, "f4")), "ContainerFailed", 502, False, "declared FP32", "FP64")


def test_an_unknown_route_names_its_neighbours(client: Client) -> None:
    expect_error(client.ask("echo_fp23", np.zeros(1, "f4")), "NotFound", 404, False, "echo_fp32")
    expect_error(client.ask("rows/2", np.zeros(2, "f4")), "NotFound", 404, False, "rows")
    assert values(client.ask("rows", np.ones(2, "f4")).tensors) == [2], "the connection goes on"


@pytest.mark.parametrize(
    ("tensors", "texts"),
    [
        ([np.zeros((1, 2), "f8")], ["float32", "float64"]),
        ([np.zeros((1, 3), "f4")], ["[-1,2]", "[1,3]"]),
        ([np.zeros((1, 1, 2), "f4")], ["[-1,2]", "[1,1,2]"]),
        ([], ["1", "0"]),
        ([np.zeros(2, "f4"), np.zeros(2, "f4")], ["1", "2"]),
    ],
    ids=["dtype", "shape", "rank", "none", "two"],
)
def test_tensors_that_do_not_fit(client: Client, tensors: list[Any], texts: list[str]) -> None:
    answer = client.ask("rows", *tensors)
    expect_error(answer, "InvalidInput", 400, False)
    message = answer.metadata["message"].replace(", ", ",")
    assert all(text in message for text in texts), message


def test_answers_come_in_the_order_of_the_questions(client: Client) -> None:
    for i in range(60):
        if i % 10 == 0:
            client.send(Message("slow", {"id": i}, [np.array([0.02, i], "f4")]))
        else:
            client.send(Message("echo_int32", {"id": i}, [np.array([[i]], "i4")]))
    for i in range(60):
        answer = client.receive()
        assert answer.metadata["id"] == i
        got = answer.tensors[0].reshape(-1)[0]
        assert got == (i if i % 10 else np.float32(0.02) + np.float32(i)), answer


def test_many_clients_get_their_own_answers(server: Server) -> None:
    def run(n: int) -> None:
        with server.client() as client:
            for i in range(50):
                sent = np.full((1 + i % 3, 4), 1000 * n + i, "i8")
                answer = client.ask("echo_int64", sent)
                assert same_bits(answer.tensors[0], sent), (n, i, answer)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, range(8)))


def test_a_deadline_passes_while_the_model_computes(client: Client) -> None:
    expect_error(client.ask("slow", np.array([1, 0], "f4"), timeout_ms=100), "DeadlineExceeded", 504, True)


def test_a_killed_container_is_a_typed_error_and_comes_back(server: Server, client: Client, start: Start) -> None:
    script = HERE / "killed_model.py"
    process = start(str(script))
    server.wait_ready("killed/1")
    first = client.ask("killed", np.array([0], "f4"))
    assert first.namespace == "killed", first.metadata
    client.send(Message("killed", {"timeout_ms": 5000}, [np.array([3600], "f4")]))
    wait(lambda: "computing 3600" in process.output(), "the batch in the model")
    process.kill()
    answer = client.receive()
    assert answer.namespace == "!error"
    # Which one depends on how long the server waits for another replica.
    assert answer.metadata["type"] in ("ContainerLost", "Unavailable", "DeadlineExceeded"), answer.metadata
    assert answer.metadata["retryable"] is True
    server.wait_gone("killed/1")
    expect_error(client.ask("killed", np.array([0], "f4"), timeout_ms=500), "Unavailable", 503, True)
    start(str(script))
    server.wait_ready("killed/1")
    again = client.ask("killed", np.array([0], "f4"))
    assert again.namespace == "killed", again.metadata
    assert again.tensors[0] != first.tensors[0], "the same process?"


def test_a_container_asked_to_end_answers_first(server: Server, client: Client, start: Start) -> None:
    process = start(str(HERE / "killed_model.py"), MODEL_NAME="drained")
    server.wait_ready("drained/1")
    client.send(Message("drained", {}, [np.array([0.5], "f4")]))
    wait(lambda: "computing 0.5" in process.output(), "the batch in the model")
    assert process.terminate() == 0, process.output()
    answer = client.receive()
    assert answer.namespace == "drained", answer.metadata
    server.wait_gone("drained/1")


def test_a_broken_header_is_answered_and_the_connection_closed(server: Server) -> None:
    with server.client() as client:
        client.send(Message("rows", {"id": 1}, [np.ones(2, "f4")]))
        client.socket.sendall(b"\0" * 12)
        assert client.receive().metadata["id"] == 1
        expect_error(client.receive(), "Protocol", 400, False)
        with pytest.raises(ConnectionError):
            client.receive()


@pytest.mark.parametrize("namespace", ["!live", "!ready", "!server", "!models"])
def test_control_requests(client: Client, namespace: str) -> None:
    answer = client.ask(namespace, id=3)
    assert answer.namespace == namespace, answer.metadata
    assert answer.metadata["id"] == 3
    if namespace == "!models":
        assert "echo_fp32" in str(answer.metadata)


def test_the_reference_client(server: Server) -> None:
    """The reference implementation of Shiva from the package index."""
    import shiva

    async def talk() -> None:
        host, _, port = server.tcp.rpartition(":")
        client = await shiva.ShivaClientAsync.create_and_connect(host, int(port))
        try:
            for name in sdk_models.ECHOED:
                sent = bits(name, (3, 5))
                route = f"echo_{name.lower()}"
                message = shiva.ShivaMessage(metadata={"id": name}, tensors=[sent], namespace=route)
                answer = await client.send_message(message, timeout=60)
                assert answer.namespace == route, answer.metadata
                assert same_bits(answer.tensors[0].astype(sent.dtype), sent), name
                assert answer.metadata["id"] == name
            answer = await client.send_message(shiva.ShivaMessage(namespace="nowhere"), timeout=60)
            assert answer.namespace == "!error"
            assert answer.metadata["type"] == "NotFound"
        finally:
            await client.disconnect()

    asyncio.run(talk())


def test_the_client_of_the_readme(server: Server, start: Start) -> None:
    start(str(HERE.parents[2] / "examples" / "digits" / "container.py"))
    server.wait_ready("digits/1")
    program = (HERE / "minimal_client.py").read_text()
    assert len([line for line in program.splitlines() if line.strip()]) <= 15
    program = program.replace("6174", server.tcp.rpartition(":")[2], 1)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "4\n", "")

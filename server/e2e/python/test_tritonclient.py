"""Triton's stock clients, over HTTP and gRPC, blocking and asyncio, with models in Python and Go.

The server does not know them. All of their methods are called, as the last test checks.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import queue
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
import stock_models
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio
from conftest import PATIENCE, Process, Server, Start, wait
from stock_client import Stock, array, key, refused, region, same, used
from tritonclient.grpc.auth import BasicAuth as GRPCBasicAuth
from tritonclient.http.auth import BasicAuth as HTTPBasicAuth
from tritonclient.utils import (
    InferenceServerException,
    np_to_triton_dtype,
    serialize_byte_tensor,
    shared_memory,
)

BOTH_DOORS = [
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "statistics",
]
MEMORY = "system_shared_memory"
DIGITS = "digits"
"""The model in Go, whose process the server starts."""


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with asyncio.Runner() as runner:
        yield runner.get_loop()


@pytest.fixture(scope="module", params=["http", "grpc", "http aio", "grpc aio"])
def stock(request: Any, server: Server, loop: asyncio.AbstractEventLoop) -> Iterator[Stock]:
    modules = {"http": triton_http, "grpc": triton_grpc, "http aio": triton_http_aio, "grpc aio": triton_grpc_aio}
    address = server.rest if request.param.startswith("http") else server.grpc
    client = Stock(request.param, modules[request.param], address, loop.run_until_complete)
    yield client
    client.close()


@pytest.fixture(scope="module", autouse=True)
def models(server: Server, start: Start) -> Process:
    process = start("stock_models.py")
    server.wait_ready(
        DIGITS + "/1",
        "stock_told/1",
        "stock_fails/1",
        "stock_slow/1",
        "stock_sequence/1",
        "stock_simple/1",
        "stock_simple_string/1",
        "stock_labels/1",
        *(f"stock_{name.lower()}/1" for name in stock_models.ECHOED),
    )
    return process


def test_health(stock: Stock) -> None:
    assert stock.is_server_live()
    assert stock.is_server_ready()
    assert stock.is_model_ready(DIGITS)
    assert stock.is_model_ready(DIGITS, "1")
    assert not stock.is_model_ready("nope")
    assert not stock.is_model_ready(DIGITS, "17")


def test_server_metadata(stock: Stock) -> None:
    reply = stock.json(stock.get_server_metadata)
    assert reply["name"] == "shivad"
    assert reply["version"]
    assert reply["extensions"] == BOTH_DOORS + ["binary_tensor_data"] * stock.http + [MEMORY]
    if not stock.http:
        assert stock.get_server_metadata().name == "shivad"


def test_model_metadata_and_config(stock: Stock) -> None:
    options = {} if stock.http else {"as_json": True}
    metadata = stock.get_model_metadata(DIGITS, "1", headers={"x-header": "1"}, **options)
    assert metadata["platform"] == "go"
    # Both clients return the shape as in their JSON: numbers over HTTP, strings of int64 over
    # gRPC.
    assert [
        (t["name"], t["datatype"], [int(n) for n in t["shape"]]) for t in metadata["inputs"] + metadata["outputs"]
    ] == [
        ("image", "UINT8", [-1, 8, 8]),
        ("scores", "FP32", [-1, 10]),
        ("label", "INT64", [-1]),
    ]
    config = stock.get_model_config(DIGITS, **options)
    config = config if stock.http else config["config"]
    assert config["name"] == DIGITS
    assert config["max_batch_size"] == 64
    assert [(t["name"], t["data_type"], [int(n) for n in t["dims"]]) for t in config["input"]] == [
        ("image", "TYPE_UINT8", [8, 8])
    ]
    assert int(config["dynamic_batching"]["priority_levels"]) == 10
    with refused(stock, 404, "NOT_FOUND", "nope"):
        stock.get_model_metadata("nope")
    with refused(stock, 404, "NOT_FOUND", '"9"'):
        stock.get_model_config(DIGITS, "9")


@pytest.mark.parametrize("name", stock_models.ECHOED)
def test_datatypes(stock: Stock, name: str) -> None:
    sent = array(name)
    model = f"stock_{name.lower()}"
    for rows in (sent, sent[:1], np.concatenate([sent] * 100)):
        answer = stock.infer(model, [stock.input("x", rows)], outputs=[stock.output("x")])
        assert same(answer.as_numpy("x"), rows), answer.as_numpy("x")
        assert same(stock.infer(model, [stock.input("x", rows)]).as_numpy("x"), rows)  # all outputs
    if not stock.http:
        return
    if name == "BF16":  # this client sends no JSON of it, but can read it
        answer = stock.infer(model, [stock.input("x", sent)], outputs=[stock.output("x", binary_data=False)])
        assert same(answer.as_numpy("x"), sent)
        return
    for binary_in, binary_out in ((False, False), (False, True), (True, False)):
        answer = stock.infer(
            model, [stock.input("x", sent, binary_data=binary_in)], outputs=[stock.output("x", binary_data=binary_out)]
        )
        got = answer.as_numpy("x")
        assert ("binary_data_size" in answer.get_output("x").get("parameters", {})) == binary_out
        if name == "BYTES" and not binary_out:
            sent = np.array([[text.decode() for text in row] for row in sent.tolist()], dtype=object)
            got = np.array(got.tolist(), dtype=object)
        assert same(got, sent), got
        sent = array(name)


def test_what_is_said_beside_the_tensors(stock: Stock) -> None:
    x = np.array([1, 2], dtype=np.int32)
    options: dict[str, Any] = {"query_params": {"a": "b"}} if stock.http else {"client_timeout": PATIENCE}
    answer = stock.infer(
        "stock_told",
        [stock.input("x", x)],
        model_version="1",
        request_id="the id",
        sequence_id=42,
        sequence_start=True,
        sequence_end=True,
        priority=3,
        timeout=int(PATIENCE * 1e6),
        headers={"x-header": "with value"},
        parameters={"text": "grün", "count": 7, "yes": True},
        **options,
    )
    response = answer.get_response() if stock.http else answer.get_response(as_json=True)
    assert response["id"] == "the id"
    assert response["model_name"] == "stock_told"
    assert response["model_version"] == "1"
    for row in answer.as_numpy("told"):
        told = json.loads(row)
        assert told["priority"] == 2  # the protocol counts from 1
        assert told["parameters"] == {
            "text": "grün",
            "count": 7,
            "yes": True,
            "sequence_id": 42,
            "sequence_start": True,
            "sequence_end": True,
        }
    # Sequences may have names, too.
    answer = stock.infer("stock_told", [stock.input("x", x)], sequence_id="a name", sequence_start=True)
    assert json.loads(answer.as_numpy("told")[0])["parameters"]["sequence_id"] == "a name"


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compression(stock: Stock, algorithm: str) -> None:
    rows = np.tile(np.arange(1000, dtype=np.int32), (50, 1))
    for request, response in ((algorithm, None), (None, algorithm), (algorithm, algorithm)):
        if stock.http:
            options = {"request_compression_algorithm": request, "response_compression_algorithm": response}
        else:
            options = {"compression_algorithm": request}
        for binary in ({"binary_data": True}, {"binary_data": False}) if stock.http else ({},):
            answer = stock.infer(
                "stock_int32", [stock.input("x", rows, **binary)], outputs=[stock.output("x", **binary)], **options
            )
            assert same(answer.as_numpy("x"), rows)


def test_classification(stock: Stock) -> None:
    images = np.random.default_rng(1).integers(0, 16, (3, 8, 8), dtype=np.uint8)
    scores = stock.infer(DIGITS, [stock.input("image", images)]).as_numpy("scores")
    answer = stock.infer(
        DIGITS, [stock.input("image", images)], outputs=[stock.output("scores", class_count=3), stock.output("label")]
    )
    classes = answer.as_numpy("scores")
    assert classes.shape == (3, 3)
    for row, reply in zip(scores, classes.tolist(), strict=True):
        best = np.argsort(-row, kind="stable")[:3]
        values, indices = zip(*(text.decode().split(":") for text in reply), strict=True)
        assert [int(i) for i in indices] == best.tolist()
        assert [float(value) for value in values] == [round(float(value), 6) for value in row[best]]
    assert np.array_equal(answer.as_numpy("label"), scores.argmax(axis=1))


def test_classes_have_the_labels_of_the_container(stock: Stock) -> None:
    pixels = np.array([[0.5, 2, 1, 4, 3], [5, 1, 2, 3, 4]], np.float32).reshape(2, 1, 1, 5)
    outputs = [stock.output("scores", class_count=5)]
    reply = stock.infer("stock_labels", [stock.input("image", pixels)], outputs=outputs).as_numpy("scores")
    assert [[text.decode() for text in row] for row in reply] == [
        ["4.000000:3:grüner Vogel", "3.000000:4", "2.000000:1:dog: a good one", "1.000000:2", "0.500000:0:cat"],
        ["5.000000:0:cat", "4.000000:4", "3.000000:3:grüner Vogel", "2.000000:2", "1.000000:1:dog: a good one"],
    ]
    config = stock.get_model_config("stock_labels") if stock.http else stock.get_model_config("stock_labels").config
    if stock.http:
        image, listed = config["input"][0]["format"], config["parameters"]["labels.scores"]["string_value"]
        assert stock.get_model_config(DIGITS)["input"][0]["format"] == "FORMAT_NONE"
    else:
        image = triton_grpc.model_config_pb2.ModelInput.Format.Name(config.input[0].format)
        listed = config.parameters["labels.scores"].string_value
    assert image == "FORMAT_NHWC"
    assert json.loads(listed) == stock_models.ANIMALS


def test_statistics(stock: Stock) -> None:
    def counts(model: str = "") -> dict[str, Any]:
        options = {} if stock.http else {"as_json": True}
        reply = stock.get_inference_statistics(model, **options)
        return {m["name"]: m for m in reply["model_stats"]}

    def of(model: dict[str, Any], *path: str) -> int:
        value: Any = model
        for name in path:
            value = value.get(name, 0)  # gRPC's JSON leaves zeros out
        return int(value)

    before = counts("stock_fp64")["stock_fp64"]
    stock.infer("stock_fp64", [stock.input("x", np.zeros((5, 1)))])
    rows = of(before, "inference_count") + 5
    # A batch is counted when its answers are on their way.
    wait(lambda: of(counts("stock_fp64")["stock_fp64"], "inference_count") == rows, "the rows to be counted")
    after = counts("stock_fp64")
    assert list(after) == ["stock_fp64"]
    now = after["stock_fp64"]
    assert of(now, "execution_count") - of(before, "execution_count") >= 1
    for part in ("success", "queue", "compute_infer"):
        path = ("inference_stats", part)
        assert of(now, *path, "count") - of(before, *path, "count") == 1
        assert of(now, *path, "ns") >= of(before, *path, "ns")
    assert sum(of(b, "batch_size") * of(b, "compute_infer", "count") for b in now["batch_stats"]) == of(
        now, "inference_count"
    )
    assert {"stock_fp64", DIGITS} <= set(counts())
    with refused(stock, 404, "NOT_FOUND", "nope"):
        counts("nope")


def test_repository(stock: Stock, server: Server) -> None:
    def state(model: str) -> str:
        index = stock.json(stock.get_model_repository_index)
        index = index if stock.http else index["models"]
        return {m["name"]: m["state"] for m in index}[model]

    image = np.zeros((1, 8, 8), dtype=np.uint8)
    assert state(DIGITS) == "READY"
    assert state("stock_told") == "READY"
    stock.unload_model(DIGITS)
    assert state(DIGITS) == "UNAVAILABLE"
    assert not stock.is_model_ready(DIGITS)
    with refused(stock, 503, "UNAVAILABLE", DIGITS):
        stock.infer(DIGITS, [stock.input("image", image)])
    stock.load_model(DIGITS)
    assert state(DIGITS) == "READY"
    assert stock.is_model_ready(DIGITS)
    assert stock.infer(DIGITS, [stock.input("image", image)]).as_numpy("label").shape == (1,)
    stock.load_model(DIGITS)  # it is there already
    with refused(stock, 400, "INVALID_ARGUMENT", "config"):
        stock.load_model(DIGITS, config="{}")
    with refused(stock, 404, "NOT_FOUND", "nope"):
        stock.load_model("nope")
    with refused(stock, 404, "NOT_FOUND", "nope"):
        stock.unload_model("nope")
    with refused(stock, 400, "INVALID_ARGUMENT", "connect by themselves"):
        stock.unload_model("stock_told", unload_dependents=True)


def test_errors(stock: Stock) -> None:
    x = np.array([1], dtype=np.int32)
    with refused(stock, 404, "NOT_FOUND", '"stock_tol"', 'nearest: "stock_told"'):
        stock.infer("stock_tol", [stock.input("x", x)])
    with refused(stock, 404, "NOT_FOUND", '"7"'):
        stock.infer("stock_told", [stock.input("x", x)], model_version="7")
    with refused(stock, 400, "INVALID_ARGUMENT", '"x"', "int32", "int64"):
        stock.infer("stock_told", [stock.input("x", x.astype(np.int64))])
    with refused(stock, 400, "INVALID_ARGUMENT", '"y"'):
        stock.infer("stock_told", [stock.input("y", x)])
    with refused(stock, 400, "INVALID_ARGUMENT", '"nope"'):
        stock.infer("stock_told", [stock.input("x", x)], outputs=[stock.output("nope")])
    with refused(stock, 502, "INTERNAL", "no such luck"):
        stock.infer("stock_fails", [stock.input("x", x)])
    with refused(stock, 504, "DEADLINE_EXCEEDED", "deadline"):
        stock.infer("stock_slow", [stock.input("x", np.array([0.3], dtype=np.float32))], timeout=50_000)
    if not stock.http:
        with pytest.raises(InferenceServerException) as info:
            stock.infer("stock_slow", [stock.input("x", np.array([0.3], dtype=np.float32))], client_timeout=0.05)
        # The client has its own clock. The server's transport ends the call at the same
        # deadline, and if the client sees that first, it reports CANCELLED.
        assert info.value.status() in ("StatusCode.DEADLINE_EXCEEDED", "StatusCode.CANCELLED")
    # Afterwards the client works as before.
    assert stock.infer("stock_told", [stock.input("x", x)]).as_numpy("told").shape == (1,)


def test_what_is_not_announced_is_refused(stock: Stock) -> None:
    missing = functools.partial(refused, stock, 404, "UNIMPLEMENTED")
    for call in (
        stock.get_trace_settings,
        functools.partial(stock.update_trace_settings, settings={"trace_level": ["OFF"]}),
        functools.partial(stock.get_trace_settings, DIGITS),
        stock.get_log_settings,
        functools.partial(stock.update_log_settings, {"log_info": True}),
        functools.partial(stock.register_cuda_shared_memory, "region", base64.b64encode(b"handle"), 0, 64),
    ):
        with missing():
            call()
    # Triton's examples begin with these, whether they use such memory or not.
    status = stock.get_cuda_shared_memory_status()  # over HTTP the list itself
    assert len(getattr(status, "regions", status)) == 0
    stock.unregister_cuda_shared_memory()


@pytest.mark.parametrize("name", [name for name in stock_models.ECHOED if name != "BF16"])
def test_shared_memory(stock: Stock, name: str) -> None:
    """As Triton's examples do: the tensors of every datatype that the client's module knows."""
    rows = array(name)
    packed = serialize_byte_tensor(rows) if name == "BYTES" else rows
    size = len(packed.item()) if name == "BYTES" else rows.nbytes
    echo = functools.partial(stock.infer, f"stock_{name.lower()}")
    with region(stock, "in", size + 8) as given, region(stock, "out", size + 8) as answered:
        shared_memory.set_shared_memory_region(given, [packed], offset=8)
        x, out = stock.input("x", rows), stock.output("x")
        x.set_shared_memory("in", size, offset=8)
        out.set_shared_memory("out", size + 8)
        answer = echo([x], outputs=[out])
        # Over HTTP Triton's client in C++ also wants to read how many bytes follow: none.
        told = dict(stock.parameters(answer, "x"))
        assert told.pop("binary_data_size", 0) == 0
        assert told == {
            "shared_memory_region": "out",
            "shared_memory_byte_size": size,
            "shared_memory_offset": 0,
        }
        # A copy: the memory cannot be closed under an array.
        assert same(np.array(shared_memory.get_contents_as_numpy(answered, rows.dtype, rows.shape)), rows)
        assert same(echo([x]).as_numpy("x"), rows)
        assert echo([stock.input("x", rows)], outputs=[out])
        out.set_shared_memory("out", size - 1)
        with refused(stock, 400, "INVALID_ARGUMENT", f"should be at least {size} bytes to hold the results"):
            echo([x], outputs=[out])


@pytest.mark.parametrize("texts", [False, True], ids=["simple_shm_client", "simple_shm_string_client"])
def test_shared_memory_examples(stock: Stock, texts: bool) -> None:
    """The calls of Triton's simple_{http,grpc}_shm{,_string}_client in their order.

    Both inputs lie in one region and both outputs in another, one behind the other.
    """
    numbers = np.arange(16, dtype=np.int32).reshape(1, 16), np.ones((1, 16), dtype=np.int32)
    wanted = numbers[0] + numbers[1], numbers[0] - numbers[1]
    given: list[Any] = list(numbers)
    sizes, out_sizes = [x.nbytes for x in numbers], [x.nbytes for x in wanted]
    if texts:
        given = [np.array([str(n).encode() for n in x.ravel()], dtype=object).reshape(x.shape) for x in numbers]
        given = [serialize_byte_tensor(x) for x in given]
        sizes, out_sizes = [len(x.item()) for x in given], [16 * (4 + 3)] * 2

    stock.unregister_system_shared_memory()
    out = shared_memory.create_shared_memory_region("output_data", key("output_simple"), sum(out_sizes))
    stock.register_system_shared_memory("output_data", key("output_simple"), sum(out_sizes))
    into = shared_memory.create_shared_memory_region("input_data", key("input_simple"), sum(sizes))
    shared_memory.set_shared_memory_region(into, [given[0]])
    shared_memory.set_shared_memory_region(into, [given[1]], offset=sizes[0])
    stock.register_system_shared_memory("input_data", key("input_simple"), sum(sizes))

    inputs, outputs = [], []
    for i in range(2):
        module = triton_http if stock.http else triton_grpc
        inputs.append(module.InferInput(f"INPUT{i}", [1, 16], "BYTES" if texts else "INT32"))
        inputs[i].set_shared_memory("input_data", sizes[i], offset=sum(sizes[:i]))
        outputs.append(stock.output(f"OUTPUT{i}", **({"binary_data": True} if stock.http else {})))
        outputs[i].set_shared_memory("output_data", out_sizes[i], offset=sum(out_sizes[:i]))
    answer = stock.infer("stock_simple_string" if texts else "stock_simple", inputs, outputs=outputs)

    for i, want in enumerate(wanted):
        reply = answer.get_output(f"OUTPUT{i}")
        shape = reply["shape"] if stock.http else list(reply.shape)
        dtype = np.object_ if texts else np.int32
        got = shared_memory.get_contents_as_numpy(out, dtype, shape, offset=sum(out_sizes[:i]))
        assert [int(n) for n in got.ravel()] == want.ravel().tolist()
        del got  # the memory cannot be closed under an array
    status = stock.json(stock.get_system_shared_memory_status)
    listed = {one["name"]: one for one in (status if stock.http else status["regions"].values())}
    assert set(listed) == {"input_data", "output_data"}
    assert listed["input_data"]["key"] == key("input_simple")
    assert int(listed["input_data"]["byte_size"]) == sum(sizes)
    assert len(stock.json(lambda **how: stock.get_system_shared_memory_status("output_data", **how))) == 1
    stock.unregister_system_shared_memory("input_data")
    with refused(stock, 404, "NOT_FOUND", "Unable to find shared memory region: 'input_data'"):
        stock.infer("stock_simple_string" if texts else "stock_simple", inputs, outputs=outputs)
    stock.unregister_system_shared_memory()
    shared_memory.destroy_shared_memory_region(into)
    shared_memory.destroy_shared_memory_region(out)
    assert shared_memory.mapped_shared_memory_regions() == []
    assert not stock.json(stock.get_system_shared_memory_status)


def test_regions(stock: Stock) -> None:
    def names() -> set[str]:
        reply = stock.json(stock.get_system_shared_memory_status)
        return {one["name"] for one in reply} if stock.http else set(reply.get("regions", {}))

    assert names() == set()
    with region(stock, "a", 64), region(stock, "b", 64):
        assert names() == {"a", "b"}
        with refused(stock, 400, "INVALID_ARGUMENT", "shared memory region 'a' already in manager"):
            stock.register_system_shared_memory("a", key("a"), 64)
        with refused(stock, 400, "INVALID_ARGUMENT", "failed to register shared memory region 'c': invalid args"):
            stock.register_system_shared_memory("c", key("a"), 65)
        with refused(stock, 404, "NOT_FOUND", "Unable to open shared memory region: '/none'"):
            stock.register_system_shared_memory("c", "/none", 64)
        with refused(stock, 404, "NOT_FOUND", "Unable to find system shared memory region: 'c'"):
            stock.get_system_shared_memory_status("c")
        stock.unregister_system_shared_memory()
        assert names() == set()
        x = stock.input("x", np.ones((2, 2), dtype=np.float32))
        x.set_shared_memory("a", 16)
        with refused(stock, 404, "NOT_FOUND", "Unable to find shared memory region: 'a'"):
            stock.infer("stock_fp32", [x])


def test_plugins(stock: Stock) -> None:
    plugin = (HTTPBasicAuth if stock.http else GRPCBasicAuth)("user", "password")
    stock.register_plugin(plugin)
    assert stock.plugin() is plugin
    assert stock.is_server_live()
    stock.unregister_plugin()


def test_bodies(stock: Stock, server: Server) -> None:
    """Bodies that the client builds and parses for users that send them themselves."""
    if not stock.http:
        return
    rows = array("FP32")
    body, head = stock.generate_request_body([stock.input("x", rows)], outputs=[stock.output("x")])
    request = urllib.request.Request(f"http://{server.rest}/v2/models/stock_fp32/infer", bytes(body))
    request.add_header("Inference-Header-Content-Length", str(head))
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        length = int(answer.headers["Inference-Header-Content-Length"])
        result = stock.parse_response_body(answer.read(), header_length=length)
    assert same(result.as_numpy("x"), rows)


# Methods that only the blocking clients have.


def test_async_infer_over_http(server: Server) -> None:
    with triton_http.InferenceServerClient(server.rest, concurrency=4) as client:
        used.setdefault("http", set()).add("async_infer")
        sent = [np.full((3, 5), i, dtype=np.float32) for i in range(20)]
        pending = []
        for i, rows in enumerate(sent):
            x = triton_http.InferInput("x", [3, 5], "FP32")
            x.set_data_from_numpy(rows)
            pending.append(client.async_infer("stock_fp32", [x], request_id=str(i)))
        for i, (rows, request) in enumerate(zip(sent, pending, strict=True)):
            answer = request.get_result(timeout=PATIENCE)
            assert answer.get_response()["id"] == str(i)
            assert same(answer.as_numpy("x"), rows)
        x = triton_http.InferInput("x", [1], "INT32")
        x.set_data_from_numpy(np.zeros(1, dtype=np.int32))
        with pytest.raises(InferenceServerException, match="no such luck"):
            client.async_infer("stock_fails", [x]).get_result()


def grpc_input(name: str, rows: np.ndarray) -> triton_grpc.InferInput:
    x = triton_grpc.InferInput(name, list(rows.shape), np_to_triton_dtype(rows.dtype))
    x.set_data_from_numpy(rows)
    return x


def test_async_infer_over_grpc(server: Server) -> None:
    used.setdefault("grpc", set()).add("async_infer")
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()

    def take(result: Any, error: Any) -> None:
        answers.put((result, error))

    with triton_grpc.InferenceServerClient(
        server.grpc, keepalive_options=triton_grpc.KeepAliveOptions(keepalive_time_ms=10_000)
    ) as client:
        for i in range(20):
            x = grpc_input("x", np.full((2, 3), i, dtype=np.int32))
            client.async_infer("stock_int32", [x], take, request_id=str(i))
        for _ in range(20):
            result, error = answers.get(timeout=PATIENCE)
            assert error is None, error
            assert (result.as_numpy("x") == int(result.get_response().id)).all()
        client.async_infer("stock_fails", [grpc_input("x", np.zeros(1, dtype=np.int32))], take)
        result, error = answers.get(timeout=PATIENCE)
        assert result is None
        assert error.status() == "StatusCode.INTERNAL"
        call = client.async_infer("stock_slow", [grpc_input("x", np.ones(1, dtype=np.float32))], take)
        call.cancel()
        result, error = answers.get(timeout=PATIENCE)
        assert error.status() == "StatusCode.CANCELLED"


@pytest.mark.parametrize("algorithm", [None, "gzip", "deflate"])
def test_stream(server: Server, algorithm: str | None) -> None:
    used.setdefault("grpc", set()).update(("start_stream", "async_stream_infer", "stop_stream"))
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton_grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(
            lambda result, error: answers.put((result, error)),
            stream_timeout=PATIENCE,
            headers={"x-header": "1"},
            compression_algorithm=algorithm,
        )
        for i in range(20):
            x = grpc_input("x", np.full((2, 3), i, dtype=np.int32))
            client.async_stream_infer(
                "stock_int32", [x], request_id=str(i), enable_empty_final_response=True, priority=1
            )
        # A request that fails is answered in its place, and the stream continues.
        client.async_stream_infer("stock_fails", [grpc_input("x", np.zeros(1, dtype=np.int32))], request_id="fails")
        client.async_stream_infer(
            "stock_int32", [grpc_input("x", np.full((1, 1), 20, dtype=np.int32))], request_id="20"
        )
        for i in range(20):
            result, error = answers.get(timeout=PATIENCE)
            assert error is None, error
            response = result.get_response()
            assert response.id == str(i)
            assert response.parameters["triton_final_response"].bool_param
            assert (result.as_numpy("x") == i).all()
        result, error = answers.get(timeout=PATIENCE)
        assert "no such luck" in error.message()
        result, error = answers.get(timeout=PATIENCE)
        assert error is None
        assert result.get_response().id == "20"
        client.stop_stream()
        assert answers.empty()


@pytest.mark.parametrize("ids", [(1000, 1001), ("a", "b")])
def test_sequences_on_a_stream(server: Server, ids: tuple[Any, Any]) -> None:
    """Triton's simple_grpc_sequence_stream_infer_client, twenty times."""
    values = [11, 7, 5, 3, 2, 0, 1]
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton_grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for turn in range(20):
            for n, sequence_id in enumerate(ids):
                for i, value in enumerate(values):
                    client.async_stream_infer(
                        "stock_sequence",
                        [grpc_input("INPUT", np.full((1, 1), value if n == 0 else -value, dtype=np.int32))],
                        request_id=f"{sequence_id}_{turn}_{i}",
                        sequence_id=sequence_id,
                        sequence_start=i == 0,
                        sequence_end=i == len(values) - 1,
                    )
        for _ in range(20):
            for n in range(2):
                for total in np.cumsum(values):
                    result, error = answers.get(timeout=PATIENCE)
                    assert error is None, error
                    assert result.as_numpy("OUTPUT").tolist() == [[total if n == 0 else -total]]


def test_stream_with_asyncio(server: Server, loop: asyncio.AbstractEventLoop) -> None:
    used.setdefault("grpc aio", set()).add("stream_infer")

    async def ask() -> AsyncIterator[dict[str, Any]]:
        for i in range(20):
            rows = np.full((2, 3), i, dtype=np.int32)
            yield {"model_name": "stock_int32", "inputs": [grpc_input("x", rows)], "request_id": str(i)}

    async def run() -> None:
        async with triton_grpc_aio.InferenceServerClient(server.grpc) as client:
            expected = 0
            async for result, error in client.stream_infer(ask(), stream_timeout=PATIENCE):
                assert error is None, error
                assert result.get_response().id == str(expected)
                assert (result.as_numpy("x") == expected).all()
                expected += 1
            assert expected == 20

    loop.run_until_complete(run())


def test_many_at_once_with_asyncio(server: Server, loop: asyncio.AbstractEventLoop) -> None:
    async def run() -> None:
        async with (
            triton_http_aio.InferenceServerClient(server.rest) as http,
            triton_grpc_aio.InferenceServerClient(server.grpc) as grpc,
        ):
            rows = np.ones((4, 2), dtype=np.float32)
            x = triton_http.InferInput("x", [4, 2], "FP32")
            x.set_data_from_numpy(rows)
            pending = [http.infer("stock_fp32", [x]) for _ in range(50)]
            pending += [grpc.infer("stock_fp32", [grpc_input("x", rows)]) for _ in range(50)]
            for answer in await asyncio.gather(*pending):
                assert same(answer.as_numpy("x"), rows)

    loop.run_until_complete(run())


@pytest.mark.parametrize(
    ("name", "module"),
    [("http", triton_http), ("grpc", triton_grpc), ("http aio", triton_http_aio), ("grpc aio", triton_grpc_aio)],
)
def test_no_method_was_left_out(name: str, module: Any) -> None:
    has = {method for method in dir(module.InferenceServerClient) if not method.startswith("_")}
    assert has == used[name] | {"close"}  # which may be yet to come

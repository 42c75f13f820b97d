from __future__ import annotations

import asyncio
import gc
import json
import weakref
from typing import Any

import numpy as np
import pytest
from shiva_container import Batch, DeclarationError, Model, Request, Tensor, TensorError, model

X = Tensor("x", "FP32", [-1, 2])
Y = Tensor("y", "FP32", [-1, 2])
TWO = np.ones((2, 2), "f4")
RAGGED = (
    Tensor("boxes", "FP32", [-1, 4], ragged="n"),
    Tensor("names", "BYTES", [-1], ragged="n"),
    Tensor("n", "INT64", [-1]),
)


def run(made: Model[..., Any], *arrays: Any, batch: Batch | None = None) -> list[Any]:
    return made.run(arrays, batch or Batch(len(arrays[0])))


def test_a_model_is_still_its_function() -> None:
    @model(name="m", inputs=[X], outputs=[Y])
    def double(x: np.ndarray) -> np.ndarray:
        """Twice."""
        return x * 2

    assert double(TWO).tolist() == [[2, 2], [2, 2]]
    assert double.__name__ == "double"
    assert double.__doc__ == "Twice."
    assert str(double) == "m/1"


def test_attributes_of_a_callable_are_not_the_models() -> None:
    class Net:
        def __init__(self) -> None:
            self.name, self.version, self.inputs = "net", 3, None

        def __call__(self, x: np.ndarray) -> np.ndarray:
            return x

    made = model(name="m", inputs=[X], outputs=[Y])(Net())
    assert (made.name, made.version, made.inputs) == ("m", "1", (X,))


@pytest.mark.parametrize(
    "function",
    [
        lambda b, a: (a, b),
        lambda a, b, /: (a, b),
        lambda *inputs: inputs,
        lambda *inputs: list(inputs),
        lambda **inputs: inputs,
        lambda a, b, extra=None: {"y": b, "x": a},
    ],
)
def test_inputs_and_outputs_find_their_places(function: Any) -> None:
    outputs = [Tensor("a", "FP32", [-1]), Tensor("b", "INT32", [-1])]
    if "extra" in function.__code__.co_varnames:
        outputs = [Tensor("x", "FP32", [-1]), Tensor("y", "INT32", [-1])]
    inputs = [Tensor("a", "FP32", [-1]), Tensor("b", "INT32", [-1])]
    made = model(name="m", batched=True, inputs=inputs, outputs=outputs)(function)
    a, b = run(made, np.array([1, 2], "f4"), np.array([3, 4], "i4"))
    assert a.tolist() == [1, 2]
    assert b.tolist() == [3, 4]


def test_a_function_that_does_not_fit_is_refused_where_it_is_declared() -> None:
    with pytest.raises(DeclarationError, match=r"cannot be called with the inputs \['x'\].*name its parameters"):

        @model(name="m", inputs=[X], outputs=[Y])
        def predict(image: object) -> object:
            return image


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"name": "a/b"}, "printable text without '/'"),
        ({"name": "a\nb"}, "printable"),
        ({"version": ""}, "version must be"),
        ({"outputs": []}, "at least one output"),
        ({"inputs": []}, r"output y FP32 \[-1, 2\] of a model without inputs could mean.*batched=True.*batched=False"),
        ({"inputs": [], "batched": True}, r"cannot be called with the inputs \[\]"),
        ({"outputs": [Y, Y]}, "names must differ"),
        ({"outputs": [Tensor("y", "FP32", [2])]}, "1 of 2 inputs and outputs lead.*batched=True.*batched=False"),
        ({"inputs": [Tensor("x", "FP32", [-1])]}, r"input x FP32 \[-1\] could mean.*batched=True.*batched=False"),
        ({"inputs": [Tensor("x", "UINT8", [-1, -1, 3])]}, "could mean two things"),
        ({"outputs": [Tensor("y", "FP32", [2])], "batched": True}, "1 of 2 .* lead with -1, batched=True"),
        ({"batched": False, "max_batch": 2}, "max_batch=2, but the model is not batched"),
        ({"batched": False, "per_row": True}, "per_row needs a batched model"),
        ({"inputs": [X, Tensor("m", "FP32", [-1, 2], optional=True)]}, "only inputs of a model with batched=False"),
        ({"outputs": [Tensor("y", "FP32", [-1], optional=True)]}, "only inputs can be optional"),
        ({"inputs": [Tensor("x", "FP32", [-1, 2], ragged="n")]}, "only outputs can be ragged"),
        ({"outputs": [Tensor("y", "FP32", [-1], ragged="n")]}, '"n" must be another output, INT32 or INT64'),
        ({"outputs": [Tensor("y", "FP32", [-1], ragged="n"), Tensor("n", "FP32", [-1])]}, "INT32 or INT64"),
        ({"outputs": [*RAGGED], "batched": False}, "a ragged output needs a batched model"),
        ({"outputs": [Tensor("y", "FP32", [-1, -1], ragged="n"), RAGGED[2]]}, "for every dimension but the first"),
        ({"inputs": [Tensor("x", "FP32", [-1, 2], labels=["a"])]}, "only outputs can have labels"),
        ({"outputs": [Tensor("y", "BYTES", [-1, 2], labels=["a"])]}, "labels are for values that can be ranked"),
        ({"outputs": [Tensor("y", "FP32", [-1, 2, 2, 3], format="FORMAT_NHWC")]}, "only inputs can have a format"),
        ({"inputs": [Tensor("x", "FP32", [-1, 2, 3], format="FORMAT_NHWC")]}, "3 dimensions beside that of rows"),
        (
            {"inputs": [Tensor("x", "FP32", [-1, 2, 2, 3], format="FORMAT_NHWC")], "batched": False},
            "3 dimensions beside that of rows",
        ),
        ({"inputs": [Tensor("x", "FP32", [2])], "outputs": [Tensor("y", "FP32", [])], "max_batch": 8}, "max_batch=8"),
        ({"inputs": [Tensor("x", "FP32", [2])], "outputs": [Tensor("y", "FP32", [])], "per_row": True}, "per_row"),
        ({"concurrency": 0}, "concurrency must be at least 1"),
        ({"health_interval": 0}, "health_interval must be positive"),
        ({"parameters": {"threshold": np.float32(0.5)}}, "parameters must be JSON: Object of type float32"),
        ({"parameters": {"threshold": np.nan}}, "parameters must be JSON: Out of range"),
    ],
)
def test_bad_declarations(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(DeclarationError, match=text):
        model(**{"name": "m", "inputs": [X], "outputs": [Y], **changes})(lambda x: x)


def test_a_function_that_cannot_know_how_many_rows_to_return() -> None:
    with pytest.raises(DeclarationError, match=r"a parameter called batch.*per_row=True or batched=False"):
        model(name="m", inputs=[], outputs=[Y], batched=True)(lambda *inputs: TWO)


def test_the_same_model_twice() -> None:
    model(name="m", inputs=[X], outputs=[Y])(lambda x: x)
    model(name="m", version="2", inputs=[X], outputs=[Y])(lambda x: x)
    with pytest.raises(DeclarationError, match="m/2 is declared twice"):
        model(name="m", version="2", inputs=[X], outputs=[Y])(lambda x: x)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.ones((3, 2), "f4"), r'output "y": 2 rows came in, 3 went out \(FP32 \[3, 2\]\)'),
        (np.ones((2, 3), "f4"), r"declared FP32 \[-1, 2\], returned FP32 \[2, 3\]"),
        (np.ones(2, "f4"), r"declared FP32 \[-1, 2\], returned FP32 \[2\]"),
        (np.ones((2, 2)), "return .astype"),
        (None, "returned None"),
        ({"z": TWO}, r"outputs \['y'\] are declared, the function returned \['z'\]"),
        ((TWO, TWO), "returned 2 values"),
    ],
)
def test_outputs_are_held_to_the_declaration(value: object, text: str) -> None:
    made = model(name="m", inputs=[X], outputs=[Y])(lambda x: value)
    with pytest.raises(TensorError, match=text):
        run(made, TWO)


def test_what_was_right_once_is_not_right_for_all() -> None:
    """Shapes are cached with the numbers of rows that fit them, and for the declared dtype only."""
    answers: list[Any] = []
    one = model(name="m", inputs=[X], outputs=[Y])(lambda x: answers[-1])
    x = [np.ones((2, 2), "f4")]
    for _ in range(2):
        answers.append(np.ones((2, 2), "f4"))
        assert one.run(x, Batch(2))[0] is answers[-1]
    with pytest.raises(TensorError, match="3 rows came in, 2 went out"):
        one.run(x, Batch(3))
    answers.append(np.ones((2, 2), "f8"))
    with pytest.raises(TensorError, match="returned FP64"):
        one.run(x, Batch(2))
    for rows in range(1, 1000):
        answers.append(np.ones((rows, 2), "f4"))
        one.run(x, Batch(rows))
    assert len(one._fitting) <= 256


def test_one_value_where_two_are_declared() -> None:
    made = model(name="m", inputs=[X], outputs=[Y, Tensor("z", "FP32", [-1])])(lambda x: x)
    with pytest.raises(TensorError, match=r"\['y', 'z'\] are declared, the function returned one ndarray"):
        run(made, TWO)


def test_lists_take_the_declared_dtype() -> None:
    made = model(name="m", inputs=[X], outputs=[Y])(lambda x: [[1, 2], [3, 4.5]])
    (y,) = run(made, TWO)
    assert y.dtype == np.float32
    assert y.tolist() == [[1, 2], [3, 4.5]]


def test_batch_tells_of_requests_and_takes_row_errors() -> None:
    seen: list[Batch] = []

    @model(name="m", inputs=[X], outputs=[Y])
    def predict(x: Any, batch: Batch) -> Any:
        seen.append(batch)
        batch.fail(1, "no")
        return x

    batch = Batch(3, [Request(2, {"k": 1}, 3), Request(1)])
    run(predict, np.ones((3, 2), "f4"), batch=batch)
    assert seen == [batch]
    assert batch.errors == {1: "no"}
    assert batch.request_of(1).parameters == {"k": 1}
    assert batch.request_of(2).priority == 0
    assert batch.time_left() is None
    with pytest.raises(IndexError, match="row 3 of a batch of 3"):
        batch.fail(3, "x")
    with pytest.raises(IndexError):
        batch.request_of(3)


def test_rows_that_numpy_found_can_fail() -> None:
    batch = Batch(2)
    for row in np.flatnonzero([False, True]):
        batch.fail(row, "bad")
    assert json.dumps(batch.errors) == '{"1": "bad"}'


def test_an_input_may_be_called_batch() -> None:
    tensors = {"inputs": [Tensor("batch", "FP32", [-1])], "outputs": [Tensor("y", "FP32", [-1])]}
    made = model(name="m", batched=True, **tensors)(lambda batch: batch)
    assert run(made, np.ones(2, "f4"))[0].tolist() == [1, 1]


def test_per_row_functions_fail_row_by_row() -> None:
    @model(name="m", inputs=[X], outputs=[Y, Tensor("s", "BYTES", [-1])], per_row=True)
    def predict(x: Any, request: Request) -> Any:
        assert x.shape == (2,)
        if x[0] < 0:
            raise ValueError("negative")
        return x + 1, f"{request.parameters.get('k')}"

    batch = Batch(3, [Request(1, {"k": "a"}), Request(2)])
    y, s = run(predict, np.array([[1, 2], [-1, 0], [3, 4]], "f4"), batch=batch)
    assert y.tolist() == [[2, 3], [0, 0], [4, 5]]
    assert s.tolist() == ["a", b"", "None"]
    assert batch.errors == {1: "ValueError: negative"}


def test_a_row_of_the_wrong_kind_fails_alone() -> None:
    made = model(name="m", inputs=[X], outputs=[Y], per_row=True)(lambda x: x if x[0] > 0 else np.ones(3, "f4"))
    batch = Batch(2)
    run(made, np.array([[1, 1], [0, 0]], "f4"), batch=batch)
    assert batch.errors == {1: 'output "y": declared FP32 [-1, 2], one row returned FP32 [3]'}


@pytest.mark.parametrize("is_async", [False, True])
def test_rows_that_fail_do_not_keep_the_inputs(is_async: bool) -> None:
    def function(x: Any) -> Any:
        raise ValueError

    async def function_async(x: Any) -> Any:
        raise ValueError

    made = model(name="m", inputs=[X], outputs=[Y], per_row=True)(function_async if is_async else function)
    array = np.ones((2, 2), "f4")
    reference = weakref.ref(array)
    gc.disable()
    try:
        made.run([array], Batch(2))
        del array
        assert reference() is None
    finally:
        gc.enable()


def test_every_row_fails() -> None:
    made = model(name="m", inputs=[X], outputs=[Tensor("y", "FP32", [-1, -1, 3])], per_row=True)(lambda x: 1 / 0)
    batch = Batch(2)
    assert run(made, TWO, batch=batch)[0].shape == (2, 1, 3)
    assert batch.errors == dict.fromkeys(range(2), "ZeroDivisionError: division by zero")


def test_rows_of_different_shapes_cannot_share_a_batch() -> None:
    made = model(name="m", inputs=[X], outputs=[Tensor("y", "FP32", [-1, -1])], per_row=True)(
        lambda x: [0.0] * int(x[0])
    )
    with pytest.raises(TensorError, match=r"must agree in shape, got \[1\] and, in row 1, \[2\]"):
        run(made, np.array([[1, 0], [2, 0]], "f4"))


def test_async_functions() -> None:
    running = most = 0

    @model(name="m", inputs=[X], outputs=[Y], per_row=True)
    async def predict(x: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        if x[0] < 0:
            raise ValueError("negative")
        return x

    batch = Batch(3)
    (y,) = run(predict, np.array([[1, 1], [-1, 0], [2, 2]], "f4"), batch=batch)
    assert most == 3
    assert y.tolist() == [[1, 1], [0, 0], [2, 2]]
    assert batch.errors == {1: "ValueError: negative"}

    class Callable:
        async def __call__(self, x: Any) -> Any:
            return x

    made = model(name="n", inputs=[X], outputs=[Y])(Callable())
    assert made.is_async
    assert run(made, TWO)[0].tolist() == TWO.tolist()


def test_a_model_without_a_batch_dimension() -> None:
    made = model(name="m", inputs=[Tensor("x", "FP32", [2])], outputs=[Tensor("y", "FP32", [])])(lambda x: x.sum())
    assert not made.batched
    assert made.run([np.array([1, 2], "f4")], Batch(1))[0].shape == ()


@pytest.mark.parametrize(
    "declaration", [{"batched": True}, {"per_row": True}, {"max_batch": 2}, {"inputs": [Tensor("x", "FP32", [-1, 2])]}]
)
def test_what_can_only_be_rows_needs_no_declaration(declaration: dict[str, Any]) -> None:
    declared = {"inputs": [Tensor("x", "FP32", [-1])], "outputs": [Tensor("y", "FP32", [-1])], **declaration}
    assert model(name="m", **declared)(lambda x: x).batched


def test_a_model_that_is_not_batched_sees_shapes_as_they_are() -> None:
    seen: list[Any] = []

    @model(
        name="m",
        batched=False,
        inputs=[Tensor("x", "FP32", [-1]), Tensor("mask", "UINT8", [-1], optional=True)],
        outputs=[Tensor("y", "FP32", [-1, 3])],
    )
    def predict(x: Any, mask: Any) -> Any:
        seen.append((x.shape, mask if mask is None else mask.shape))
        return np.zeros((len(x) // 2, 3), "f4")

    assert not predict.batched
    assert run(predict, np.ones(7, "f4"), None, batch=Batch(1))[0].shape == (3, 3)
    assert run(predict, np.ones(0, "f4"), np.ones(0, "u1"), batch=Batch(1))[0].shape == (0, 3)
    assert seen == [((7,), None), ((0,), (0,))]


def boxes(n: int) -> Any:
    return np.full((n, 4), n, "f4")


@pytest.mark.parametrize("per_row", [False, True])
def test_ragged_outputs_are_packed_and_counted(per_row: bool) -> None:
    def rows(x: Any) -> Any:
        found = [(boxes(int(n)), [f"{i}" for i in range(int(n))]) for n in x[:, 0]]
        return [b for b, _ in found], [names for _, names in found]

    def row(x: Any) -> Any:
        return {"names": [f"{i}" for i in range(int(x[0]))], "boxes": boxes(int(x[0])) if x[0] else []}

    made = model(name="m", inputs=[X], outputs=RAGGED, per_row=per_row)(row if per_row else rows)
    out, names, n = run(made, np.array([[2, 0], [0, 0], [1, 0]], "f4"))
    assert out.tolist() == [[2] * 4, [2] * 4, [1] * 4]
    assert names.tolist() == ["0", "1", "0"]
    assert n.tolist() == [2, 0, 1]
    assert n.dtype == np.int64
    out, names, n = run(made, np.zeros((2, 2), "f4"))
    assert (out.shape, names.shape, n.tolist()) == ((0, 4), (0,), [0, 0])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((boxes(2), ["a", "b"]), r'"boxes" is ragged: expected a list of 2 arrays, got one ndarray'),
        (([boxes(1)], [["a"]]), "expected a list of 2 arrays, got 1"),
        (([boxes(1), np.ones((1, 3), "f4")], [["a"], ["b"]]), r"for each row, returned FP32 \[1, 3\] for row 1"),
        (([boxes(1), boxes(2)], [["a"], ["b"]]), 'counts differ in row 1: "names" has 1, one before it 2'),
        (([boxes(1)] * 2, [["a"]] * 2, [1, 1]), r"outputs \['boxes', 'names'\] are declared, the function returned 3"),
    ],
)
def test_ragged_outputs_are_held_to_the_declaration(value: object, text: str) -> None:
    made = model(name="m", inputs=[X], outputs=RAGGED)(lambda x: value)
    with pytest.raises(TensorError, match=text):
        run(made, TWO)


def test_a_row_whose_ragged_outputs_disagree_fails_alone() -> None:
    made = model(name="m", inputs=[X], outputs=RAGGED, per_row=True)(lambda x: (boxes(int(x[0])), ["a"]))
    batch = Batch(3)
    out, names, n = run(made, np.array([[1, 0], [2, 0], [1, 0]], "f4"), batch=batch)
    assert batch.errors == {
        1: 'outputs "boxes" and "names" are both counted by "n", and one row returned 2 and 1',
    }
    assert (out.shape, names.tolist(), n.tolist()) == ((2, 4), ["a", "a"], [1, 0, 1])


def test_rows_that_do_not_go_together_say_what_can_be_done() -> None:
    made = model(name="m", inputs=[X], outputs=[Tensor("y", "FP32", [-1, -1])], per_row=True)(
        lambda x: np.ones(int(x[0]), "f4")
    )
    with pytest.raises(TensorError, match=r"must agree in shape.*ragged.*counts.*batched=False"):
        run(made, np.array([[1, 0], [2, 0]], "f4"))

"""What rows may share a batch, and networks that lie about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from shiva_container import Batch, models
from shiva_container.files import Network, Port, read
from shiva_container.proof import Verdict, Way, prove
from shiva_container.served import serving


@pytest.fixture(autouse=True)
def no_models_left_over() -> Iterator[None]:
    yield
    models._declared.clear()


X = Port("x", "FP32", ("n", 4))
Y = Port("y", "FP32", ("n", 4))


class Counted:
    """A network whose executions are counted."""

    def __init__(self, run: Callable[..., Any], inputs: Sequence[Port] = (X,), outputs: Sequence[Port] = (Y,)) -> None:
        self.calls = 0
        self.run = run
        self.network = Network("test", "cpu", inputs, outputs, self)

    def __call__(self, arrays: Sequence[Any]) -> Sequence[Any]:
        self.calls += 1
        answer = self.run(*arrays)
        return answer if isinstance(answer, list) else [answer]

    def prove(self) -> Verdict:
        verdict = prove(self.network)
        assert self.calls <= 10
        return verdict


# The liars.


def first_row_only(x: Any) -> Any:
    y = np.zeros_like(x)
    y[0] = x[0] * 2
    return y


def batch_statistics(x: Any) -> Any:
    return x * 2 - x.mean(axis=0) * 1.5


class State:
    def __init__(self) -> None:
        self.sum = np.zeros(4, np.float32)

    def __call__(self, x: Any) -> Any:
        self.sum += x.sum(axis=0)
        return x + self.sum


def swapped_axes(x: Any) -> Any:  # x is [time, rows, features], whatever the file says
    return np.cumsum(x, axis=0, dtype=np.float32)


def baked(x: Any) -> Any:
    return x.reshape(1, -1)


def first_row_for_all(x: Any) -> Any:
    return np.float32(20000) + x[:1] * 1e-3 + x * 0


def no_numbers(x: Any) -> Any:
    return x * np.float32(np.nan)


def index_in_a_column(x: Any) -> Any:
    items = [[i, *row[:2]] for i, row in enumerate(x) for _ in range(int(abs(row[0]) * 3) % 4 + 1)]
    return np.float32(items).reshape(-1, 3)


def wrong_index(x: Any) -> Any:
    items = index_in_a_column(x)
    items[items[:, 0] == 2, 0] = 1
    return items


@pytest.mark.parametrize(
    ("run", "outputs", "text"),
    [
        (first_row_only, Y, "output y of row 1 of 2 differs"),
        (batch_statistics, Y, "output y of row 0 of 2 differs by"),
        (State(), Y, "the same row has another answer the second time (output y): it keeps state"),
        (swapped_axes, Y, "output y of row 1 of 2 differs by"),
        (baked, Port("y", "FP32", ("m", "k")), "2 rows have an output y of shape [1, 8]"),
        (wrong_index, Port("y", "FP32", ("m", 3)), "output y of row 1 of 3 differs in its shape"),
        (lambda x: x[:1] * 0 + x.sum(), Y, "2 rows have an output y of shape [1, 4]"),
        (lambda x: np.concatenate([x, x]), Port("y", "FP32", ("m", 4)), "2 rows have an output y of shape [4, 4]"),
        (lambda x: np.zeros_like(x), Y, "random rows all have the same answer, or nearly, which shows nothing"),
        (first_row_for_all, Y, "random rows all have the same answer, or nearly, which shows nothing"),
        (no_numbers, Y, "random rows all have the same answer, or nearly, which shows nothing"),
        (lambda x: x[::-1].copy(), Y, "output y of row 0 of 2 differs by"),
    ],
)
def test_liars_get_one_row_at_a_time(run: Any, outputs: Port, text: str) -> None:
    verdict = Counted(run, outputs=[outputs]).prove()
    assert verdict.way is Way.ONE
    assert text in verdict.sentence


def test_an_error_above_one_row_is_a_verdict() -> None:
    def run(x: Any) -> Any:
        if len(x) > 2:
            raise RuntimeError("bad allocation\nsecond line")
        return x

    assert "3 rows cannot be executed together: RuntimeError: bad allocation" in Counted(run).prove().sentence


def test_the_largest_batch_is_tried() -> None:
    def run(x: Any) -> Any:  # wrong for a full batch only, and not in its first row
        y = x.copy()
        y[7:] = 0
        return y

    assert "output y of row 7 of 8 differs" in Counted(run).prove().sentence


def test_an_index_in_a_column_makes_ragged_rows() -> None:
    counted = Counted(index_in_a_column, outputs=[Port("y", "FP32", ("m", 3))])
    verdict = counted.prove()
    assert (verdict.way, verdict.columns) == (Way.INDEXED, {"y": 0})
    made = serving(counted.network, verdict, name="m")
    assert [str(tensor) for tensor in made.outputs] == ["y FP32 [-1, 3], ragged by y_count", "y_count INT64 [-1]"]
    rows = np.float32([[1, 5, 0, 0], [0, 6, 0, 0], [0.4, 7, 0, 0]])
    items, counts = made.run([rows], Batch(3))
    assert counts.tolist() == [4, 1, 2]
    assert items.tolist() == [[0, 1, 5]] * 4 + [[0, 0, 6]] + [[0, np.float32(0.4), 7]] * 2


@pytest.mark.parametrize("most", [0, 1])
def test_a_list_shows_no_index_where_at_most_one_row_has_items(most: int) -> None:
    def run(x: Any) -> Any:  # the list has no index; of the rows that are made up the first is from 0 to 1
        found = ((x >= 0) & (x <= most)).all(axis=1)
        return [x, np.zeros((2 * found.sum(), 6), np.float32)]

    verdict = Counted(run, outputs=[Y, Port("boxes", "FP32", ("m", 6))]).prove()
    assert verdict.way is Way.ONE


def test_a_fixed_batch_is_filled_up() -> None:
    seen = []

    def run(x: Any) -> Any:
        assert len(x) == 4
        seen.append(x)
        return x * 2

    counted = Counted(run, [Port("x", "FP32", (4, 3))], [Port("y", "FP32", (4, 3))])
    verdict = counted.prove()
    assert (verdict.way, verdict.most) == (Way.PADDED, 4)
    made = serving(counted.network, verdict, name="m")
    assert (made.batched, made.max_batch) == (True, 4)
    assert made.run([np.float32([[1, 2, 3], [4, 5, 6]])], Batch(2))[0].tolist() == [[2, 4, 6], [8, 10, 12]]
    assert seen[-1].tolist() == [[1, 2, 3], [4, 5, 6], [1, 2, 3], [1, 2, 3]]


@pytest.mark.parametrize("bad", [[], [0], [3], [1, 2]])
@pytest.mark.parametrize(
    ("way", "first", "run"),
    [
        (Way.ROWS, "n", lambda x: x[:, :3] * 2),
        (Way.PADDED, 4, lambda x: x[:, :3] * 2),
        (Way.INDEXED, "n", lambda x: np.repeat(np.c_[np.arange(len(x)), x[:, :2] * 2], 2, axis=0)),
    ],
)
def test_a_row_that_the_network_refuses_fails_alone(way: Way, first: int | str, run: Any, bad: list[int]) -> None:
    def refuse(x: Any) -> Any:
        if np.isnan(x).any():
            raise ValueError("the input has NaN")
        return run(x).astype(np.float32)

    counted = Counted(refuse, [Port("x", "FP32", (first, 4))], [Port("y", "FP32", (first, 3))])
    made = serving(counted.network, counted.prove(), name="m")
    assert str(made.parameters["proof"]).startswith(way.value)
    x = np.arange(1, 17, dtype=np.float32).reshape(4, 4)
    x[bad, 1] = np.nan
    batch = Batch(4)
    y = np.float32(made.run([x], batch)[0]).reshape(4, -1, 3)
    assert batch.errors == dict.fromkeys(bad, "ValueError: the input has NaN")
    good = [row for row in range(4) if row not in bad]
    assert (y[good, 0, -2:] == x[good, 0 : 2] * 2 if way is Way.INDEXED else y[good, 0] == x[good, :3] * 2).all()


def test_a_batch_of_which_every_row_is_refused() -> None:
    def refuse(x: Any) -> Any:
        raise ValueError("no")

    made = serving(Network("test", "cpu", [X], [Y], refuse), Verdict(Way.ROWS, "", outputs=[Y]), name="m")
    for rows in (1, 3):
        with pytest.raises(ValueError, match="no"):
            made.run([np.zeros((rows, 4), np.float32)], Batch(rows))


@pytest.mark.parametrize(
    ("run", "output", "text"),
    [
        (lambda x: x - x.mean(axis=0), Port("y", "FP32", (4, 3)), "the same answer"),
        (lambda x: x * np.arange(1, 5, dtype=np.float32)[:, None], Port("y", "FP32", (4, 3)), "differs by"),
        (lambda x: x[:1], Port("y", "FP32", (1, 3)), "not all outputs have as many"),
    ],
)
def test_a_fixed_batch_whose_rows_depend_on_their_places(run: Any, output: Port, text: str) -> None:
    verdict = Counted(run, [Port("x", "FP32", (4, 3))], [output]).prove()
    assert (verdict.way, verdict.counted) == (Way.ONE, False)
    assert text in verdict.sentence
    assert verdict.sentence.startswith("its batches have 4 rows")


def test_rounding_is_no_lie() -> None:
    def run(x: Any) -> Any:  # another order of sums for more rows
        return x * np.float32(1 + 1e-6 * (len(x) > 1))

    assert Counted(run).prove().way is Way.ROWS
    assert Counted(lambda x: (x * 100).astype(np.int32), outputs=[Port("y", "INT32", ("n", 4))]).prove().way is Way.ROWS


def test_inputs_that_do_not_agree_in_their_first_dimension() -> None:
    inputs = [Port("x", "FP32", ("n", 4)), Port("state", "FP32", (2, "n", 4)), Port("rate", "INT64", ())]
    counted = Counted(lambda x, state, rate: x + state.sum(), inputs)
    verdict = counted.prove()
    assert (verdict.way, verdict.counted) == (Way.ONE, False)
    made = serving(counted.network, verdict, name="m")
    assert [tensor.shape for tensor in made.inputs] == [(-1, 4), (2, -1, 4), ()]
    assert not made.batched


def test_open_sizes_are_found() -> None:
    def run(x: Any) -> Any:
        if x.shape[1] % 32 or x.shape[2] != 320:
            raise ValueError("sides are multiples of 32")
        return x.mean(axis=(1, 2))

    picture = Port("x", "FP32", ("n", "height", "width", 3))
    verdict = Counted(run, [picture], [Port("y", "FP32", ("n", 3))]).prove()
    assert verdict.way is Way.ROWS


@pytest.mark.parametrize("words", [2, 5, 101, 30000])
def test_integers_that_are_places_in_a_table_are_found(words: int) -> None:
    table = np.random.default_rng(0).random((words, 4)).astype(np.float32)
    kinds = np.random.default_rng(1).random((2, 4)).astype(np.float32)

    def run(x: Any, kind: Any) -> Any:
        return (table[x] + kinds[kind]).mean(axis=1)

    texts = [Port("x", "INT64", ("n", "length")), Port("kind", "INT64", ("n", "length"))]
    assert Counted(run, texts).prove().way is Way.ROWS


def test_a_random_row_that_is_refused_is_a_verdict() -> None:
    def run(x: Any) -> Any:
        if x.min() < 0:
            raise ValueError("expected lengths")
        return x * 2

    verdict = Counted(run, [Port("x", "FP32", ("n", 40))], [Port("y", "FP32", ("n", 40))]).prove()
    assert str(verdict) == "one at a time: not every random row can be executed: ValueError: expected lengths"
    verdict = Counted(run, [Port("x", "FP32", (4, 40))], [Port("y", "FP32", (4, 40))]).prove()
    assert verdict.way is Way.ONE
    assert "expected lengths" in verdict.sentence


def test_a_network_for_which_nothing_can_be_made_up_is_served_as_declared() -> None:
    def run(x: Any) -> Any:
        raise ValueError("expected a Persian poem")

    verdict = prove(Network("test", "cpu", [X], [Y], run))
    assert (verdict.way, verdict.counted) == (Way.ONE, False)
    assert "no made-up input could be executed: " in verdict.sentence
    assert "Persian poem" in verdict.sentence


def test_inputs_that_are_too_large_to_make_up() -> None:
    port = Port("x", "FP32", ("n", 5000, 5000))
    verdict = prove(Network("test", "cpu", [port], [Y], lambda arrays: arrays))
    assert str(verdict) == "one at a time: inputs of more than 16777216 values are not made up"


def test_a_network_without_inputs() -> None:
    verdict = Counted(lambda: np.ones((1, 4), np.float32), inputs=[]).prove()
    assert (str(verdict), verdict.counted) == ("one at a time: it has no inputs", True)


def graph(path: Path, nodes: list[Any], shape: list[Any], out: list[Any], *constants: Any) -> Path:
    def value(name: str, sizes: list[Any]) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes)

    made = helper.make_graph(nodes, "g", [value("x", shape)], [value("y", out)], list(constants))
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_liars_in_files(tmp_path: Path) -> None:
    node = helper.make_node
    shape = numpy_helper.from_array(np.array([1, -1], np.int64), "shape")
    zero = numpy_helper.from_array(np.array([0], np.int64), "zero")
    liars = {
        "baked": graph(tmp_path / "a.onnx", [node("Reshape", ["x", "shape"], ["y"])], ["n", 4], ["n", "m"], shape),
        "first": graph(tmp_path / "b.onnx", [node("Gather", ["x", "zero"], ["y"])], ["n", 4], ["n", 4], zero),
        "statistics": graph(
            tmp_path / "c.onnx",
            [node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1), node("Mul", ["m", "x"], ["y"])],
            ["n", 4],
            ["n", 4],
        ),
        "axes": graph(
            tmp_path / "d.onnx",
            [node("CumSum", ["x", "zero0"], ["y"])],
            ["a", "b", 4],
            ["a", "b", 4],
            numpy_helper.from_array(np.array(0, np.int64), "zero0"),
        ),
        "state": graph(
            tmp_path / "e.onnx",
            [node("RandomNormalLike", ["x"], ["r"]), node("Add", ["x", "r"], ["y"])],
            ["n", 4],
            ["n", 4],
        ),
    }
    for name, path in liars.items():
        assert prove(read(path)).way is Way.ONE, name
    honest = graph(tmp_path / "f.onnx", [node("Softmax", ["x"], ["y"], axis=1)], ["n", 4], ["n", 4])
    assert prove(read(honest)).way is Way.ROWS

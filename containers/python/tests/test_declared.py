"""What a declaration makes of a network, and which sizes are executed before it serves."""

import json
from dataclasses import replace

import numpy as np
import pytest
from shiva_container.declared import declared
from shiva_container.files import Network, Port, Unusable
from shiva_container.proof import Verdict, Way
from shiva_container.warm import MOST, warm

SIZES = []


def run(arrays):
    SIZES.append(len(arrays[0]))
    x = arrays[0].reshape(len(arrays[0]), -1)
    return [x.sum(axis=1, keepdims=True)[:, :, None, None], x.max(axis=1)]


NETWORK = Network(
    "test",
    "cpu",
    [Port("x", "FP32", ("n", 2, 3))],
    [Port("sum", "FP32", ("n", 1, 1, 1)), Port("max", "FP32", ("n",))],
    run,
)


def tensor(name, dims, datatype="FP32", **more):
    return {"name": name, "datatype": datatype, "dims": dims, **more}


def says(most, inputs, outputs):
    return json.dumps({"max_batch": most, "inputs": inputs, "outputs": outputs})


def test_rows_are_counted_and_shapes_are_others(tmp_path):
    labels = tmp_path / "names.txt"
    labels.write_text("small\n")
    said = says(8, [tensor("x", [6], reshape=[2, 3])], [tensor("sum", [1], reshape=[1, 1, 1], labels=str(labels))])
    seen = declared(NETWORK, said)
    assert [(one.name, one.sizes) for one in seen.inputs] == [("x", ("n", 6))]
    assert [(one.name, one.sizes, one.labels) for one in seen.outputs] == [("sum", ("n", 1), ["small"])]
    answers = seen.run([np.arange(12, dtype=np.float32).reshape(2, 6)])
    assert [one.tolist() for one in answers] == [[[15.0], [51.0]]]


def test_a_network_of_one_row_is_seen_without_it():
    """As densenet_onnx of Triton's examples: max_batch_size 0, and the row only in the reshape."""
    one = replace(
        NETWORK, inputs=[Port("x", "FP32", (1, 2, 3))], outputs=[Port("sum", "FP32", (1, 1, 1, 1)), NETWORK.outputs[1]]
    )
    said = says(0, [tensor("x", [2, 3], reshape=[1, 2, 3])], [tensor("sum", [1], reshape=[1, 1, 1, 1])])
    seen = declared(one, said)
    assert seen.inputs[0].sizes == (2, 3)
    assert seen.outputs[0].sizes == (1,)
    assert seen.run([np.ones((2, 3), np.float32)])[0].tolist() == [6.0]


def test_a_scalar_has_dims():
    seen = declared(NETWORK, says(4, [tensor("x", [2, -1])], [tensor("max", [1], scalar=True)]))
    assert seen.outputs[0].sizes == ("n", 1)
    assert seen.run([np.ones((3, 2, 3), np.float32)])[0].tolist() == [[1.0]] * 3


def test_trees_have_numbers_instead_of_names():
    """As Triton's FIL has it: the tensors of a file without names are input__0 and output__0."""
    trees = replace(NETWORK, outputs=[NETWORK.outputs[1]], run=lambda arrays: run(arrays)[1:])
    seen = declared(trees, says(8, [tensor("input__0", [2, 3])], [tensor("output__0", [1])]))
    assert [(one.name, one.sizes) for one in [*seen.inputs, *seen.outputs]] == [
        ("input__0", ("n", 2, 3)),
        ("output__0", ("n", 1)),
    ]
    assert seen.run([np.ones((3, 2, 3), np.float32)])[0].tolist() == [[1.0]] * 3


@pytest.mark.parametrize(
    ("most", "inputs", "outputs", "why"),
    [
        (8, [tensor("y", [2, 3])], [], "config.pbtxt has the input y, and the network has x"),
        (8, [tensor("input__1", [2, 3])], [], "config.pbtxt has the input input__1, and the network has x"),
        (8, [tensor("output__0", [2, 3])], [], "config.pbtxt has the input output__0, and the network has x"),
        (8, [tensor("x", [2, 3], "INT8")], [], "config.pbtxt says that x is INT8, and the network has FP32"),
        (8, [tensor("x", [2, 4])], [], r"x has the shape \[2, 4\], after the rows that max_batch_size counts"),
        (0, [tensor("x", [2, 3])], [], r"x has the shape \[2, 3\], and the network has x FP32 \[n, 2, 3\]"),
        (8, [], [tensor("sum", [1], reshape=[1, 1, 1], labels="/none.txt")], "/none.txt: No such file"),
    ],
)
def test_what_does_not_fit_is_refused(most, inputs, outputs, why):
    with pytest.raises(Unusable, match=why):
        declared(NETWORK, says(most, inputs, outputs))


@pytest.mark.parametrize(
    ("verdict", "sizes"),
    [
        (Verdict(Way.ROWS, ""), [1, 2, 4, 8, 16, 32, 64]),
        (Verdict(Way.ROWS, "", most=6), [1, 2, 4, 6]),
        (Verdict(Way.ONE, "", most=1), []),
    ],
)
def test_sizes_that_may_occur_are_warmed_up(verdict, sizes):
    SIZES.clear()
    assert warm(NETWORK, verdict) == sizes
    assert SIZES[-len(sizes) or len(SIZES) :] == sizes
    assert max(SIZES, default=0) <= MOST


def test_a_size_that_fails_ends_the_warming():
    def small(arrays):
        if len(arrays[0]) > 4:
            raise MemoryError
        return run(arrays)

    assert warm(replace(NETWORK, run=small), Verdict(Way.ROWS, "")) == [1, 2, 4]

"""Makes the .npy files beside it, with numpy: python make.py. Each dtype, both byte orders, both memory
orders and all versions of the format. The values are what npy_test.go computes for itself."""

import pathlib

import numpy as np

here = pathlib.Path(__file__).parent


def save(name: str, array: np.ndarray, version: tuple[int, int] | None = None) -> None:
    with open(here / f"{name}.npy", "wb") as f:
        np.lib.format.write_array(f, array, version=version, allow_pickle=name == "object")


for kind in ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "f16", "c8", "c16"]:
    values = np.arange(6).reshape(2, 3)
    if kind[0] != "u":
        values = values - 2
    for order in "<>" if kind[1:] != "1" else "|":
        array = values.astype(order + kind)
        if kind[0] == "c":
            array += 1j
        save(kind + {"<": "le", ">": "be", "|": ""}[order], array)

save("b1", np.array([[True, False, True], [False, False, True]]))
save("S3", np.array([[b"a", b"bc", b"def"], [b"", b"x", b"yz"]]))
for order in "<>":
    save("U3" + {"<": "le", ">": "be"}[order], np.array([["a", "bé", "日本語"], ["", "x", "😀"]]).astype(order + "U3"))
save("fortran", np.asfortranarray(np.arange(24, dtype=np.int16).reshape(2, 3, 4)))
save("scalar", np.array(7, dtype=np.uint8))
save("empty", np.zeros((0, 4), dtype=np.float32))
save("version2", np.arange(3, dtype=np.uint8), (2, 0))
save("version3", np.arange(3, dtype=np.uint8), (3, 0))
save("object", np.array([1, "a"], dtype=object))
save("record", np.zeros(2, dtype=[("x", "f4"), ("y", "i2")]))
save("date", np.array(["2020-01-01"], dtype="M8[D]"))
save("clongdouble", np.zeros(2, dtype=np.clongdouble))

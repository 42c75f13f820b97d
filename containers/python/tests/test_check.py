from __future__ import annotations

from pathlib import Path

import pytest
from shiva_container.command import main

GOOD = """
import numpy as np
from shiva_container import Tensor, model, serve

@model(name="many", inputs=[Tensor("a", "UINT8", [-1, 8, 8]), Tensor("t", "BYTES", [-1])],
       outputs=[Tensor("y", "FP32", [-1, -1])], max_batch=3)
def many(a, t):
    assert a.shape[1:] == (8, 8) and t[0] == b"text"
    return a.reshape(len(a), -1).astype(np.float32)

@many.warmup
def warm(): print("warming")

@many.health
def health(): return True

@model(name="single", inputs=[Tensor("x", "FP64", [2, -1])], outputs=[Tensor("y", "FP64", [])])
async def single(x):
    assert x.shape == (2, 5)
    return x.sum()

serve()
print("after serve")
"""


def run(tmp_path: Path, text: str, *options: str) -> int:
    path = tmp_path / "m.py"
    path.write_text(text)
    return main(["check", str(path), *options])


def test_good_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, GOOD, "--dim", "5", "--rows", "8") == 0
    out = capsys.readouterr().out
    for text in ("model many/1: batched", "warming", "health hook: ok", "3 rows in", "1 row in", "y FP32 [3, 64]",
                 "model single/1: async not batched", "y FP64 []", "after serve"):  # fmt: skip
        assert text in out
    assert "8 rows" not in out
    assert "FAILED" not in out


REGIONS = """
import numpy as np
from shiva_container import Image, Tensor, model

@model(name="cut", batched=True, inputs=[Image("x", regions=True)], outputs=[Tensor("size", "INT64", [-1, 2])])
def cut(x):
    return [one.shape[:2] for one in x]
"""


def test_regions_are_tried_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, REGIONS, "--dim", "8") == 0
    out = capsys.readouterr().out
    assert "rgb pictures, and regions of them" in out
    assert "as regions of a picture:" in out


BAD = """
import numpy as np
from shiva_container import Tensor, model
@model(name="m", inputs=[Tensor("x", "FP32", [-1, 2])], outputs=[Tensor("y", "FP32", [-1, 2])], per_row=PER_ROW)
def predict(x):
    return VALUE
"""


@pytest.mark.parametrize(
    ("value", "per_row", "text"),
    [
        ("x.astype(float)", False, 'FAILED: output "y": declared FP32 [-1, 2], returned FP64 [4, 2]'),
        ("x[0]", False, "FAILED: output"),
        ("1 / 0", False, "FAILED: ZeroDivisionError: division by zero"),
        ("1 / 0", True, "FAILED: every row failed"),
        ("x.fill(1)", False, "FAILED: ValueError"),
        ("exit(0)", False, "FAILED: SystemExit: 0"),
    ],
)
def test_bad_models(tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str, per_row: bool, text: str) -> None:
    assert run(tmp_path, BAD.replace("VALUE", value).replace("PER_ROW", str(per_row))) == 1
    assert text in capsys.readouterr().out


BACKGROUND = """
import asyncio
from shiva_container import Tensor, model

@model(name="m", batched=True, inputs=[Tensor("x", "FP32", [-1])], outputs=[Tensor("y", "FP32", [-1])])
async def predict(x):
    answer = asyncio.get_running_loop().create_future()
    questions.put_nowait((x, answer))
    return await asyncio.wait_for(answer, 10)

@predict.warmup
async def warm():
    global questions, task
    questions = asyncio.Queue()
    task = asyncio.create_task(work())

async def work():
    while True:
        x, answer = await questions.get()
        answer.set_result(x)
"""


def test_what_a_warmup_began_goes_on(tmp_path: Path) -> None:
    assert run(tmp_path, BACKGROUND) == 0


def test_rows_that_depend_on_their_neighbours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, BAD.replace("VALUE", "x - x.mean(axis=0)").replace("PER_ROW", "False")) == 0
    assert 'warning: output "y" of a row changes with the rows beside it' in capsys.readouterr().out


@pytest.mark.parametrize(("code", "text"), [("", "ZeroDivisionError"), ("3", "cannot be loaded")])
def test_a_file_that_exits(tmp_path: Path, capsys: pytest.CaptureFixture[str], code: str, text: str) -> None:
    file = BAD.replace("VALUE", "1 / 0").replace("PER_ROW", "False")
    assert run(tmp_path, f"{file}\nimport sys\nsys.exit({code})") == 1
    assert text in capsys.readouterr().err


def test_files_without_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "x = 1") == 1
    assert "no function is decorated" in capsys.readouterr().err
    assert run(tmp_path, "import nothing_of_this_name") == 1
    assert "cannot be loaded" in capsys.readouterr().err


SHAPES = """
import numpy as np
from shiva_container import Tensor, model

@model(name="clip", batched=False, inputs=[Tensor("x", "FP32", [-1]), Tensor("gain", "FP32", [], optional=True)],
       outputs=[Tensor("y", "FP32", [-1, 2])])
def clip(x, gain):
    assert x.shape == (6,)
    return np.zeros((3 if gain is None else 5, 2), "f4")

@model(name="boxes", inputs=[Tensor("x", "FP32", [-1, 2])], per_row=True,
       outputs=[Tensor("box", "FP32", [-1, 4], ragged="n"), Tensor("n", "INT32", [-1])])
def boxes(x):
    return np.zeros((3, 4), "f4")

@model(name="loose", inputs=[Tensor("x", "FP32", [-1, 2])], outputs=[Tensor("y", "FP32", [-1, -1])])
def loose(x):
    return x
"""


def test_models_of_any_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, SHAPES, "--dim", "6") == 0
    out = capsys.readouterr().out
    for text in ("model clip/1: not batched: one request at a time", "gain FP32 [], optional", "y FP32 [5, 2]",
                 "without the optional inputs:", "y FP32 [3, 2]", "box FP32 [-1, 4], ragged by n",
                 "4 rows in", "box FP32 [12, 4], n INT32 [4]", 'note: output "y": the rows of one batch'):  # fmt: skip
        assert text in out
    assert "warning" not in out

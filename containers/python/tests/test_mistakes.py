"""Wrong use is answered in the words of its author."""

from __future__ import annotations

import logging
import re
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shiva_container import Batch, Container, DeclarationError, Tensor, model, serve
from shiva_container.addresses import Address, Resolver
from shiva_container.command import main
from shiva_container.models import error_text

X = Tensor("x", "FP32", [-1, 2])


def declared(**changes: Any) -> Any:
    return model(**{"name": "mistaken", "inputs": [X], "outputs": [X], **changes})(lambda x: x)


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (lambda: serve("localhost:7000"), "say serve(servers='localhost:7000')"),  # type: ignore[arg-type]
        (lambda: serve(lambda x: x), "decorate the function with @model(name="),  # type: ignore[arg-type]
        (lambda: declared(inputs=X), "inputs is a list: inputs=[Tensor(...)]"),
        (lambda: declared(outputs=X), "outputs is a list: outputs=[Tensor(...)]"),
        (lambda: declared(inputs=["x"]), "inputs has 'x', expected Tensor(name, datatype, shape)"),
        (lambda: declared(inputs=None), "inputs is a list of Tensor"),
        (lambda: declared(version=1), 'the version is a text: version="1"'),
        (lambda: model(lambda x: x), '@model says what the function serves: @model(name="<lambda>"'),
        (lambda: model()(lambda x: x), "a model needs a name"),
        (lambda: Tensor("x", "FP32", None), "the shape is a list, as [-1, 4]"),  # type: ignore[arg-type]
        (lambda: Tensor("x", "FP32", 4), "the shape is a list, as [-1, 4]"),  # type: ignore[arg-type]
        (lambda: Tensor("x", "FP32", [None, 4]), "a dimension of any size is written -1, not None"),  # type: ignore[list-item]
    ],
)
def test_declarations(mistake: Any, text: str) -> None:
    with pytest.raises(DeclarationError, match=re.escape(text)):
        mistake()


def test_check_of_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path / "no.py")]) == 1
    err = capsys.readouterr().err
    assert "there is no such file" in err
    assert "Traceback" not in err


def test_writing_to_an_input() -> None:
    x = np.zeros(2)
    x.flags.writeable = False
    with pytest.raises(ValueError, match="read-only") as caught:
        x += 1
    assert "work on a copy" in error_text(caught.value)


def logged(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if any(text in r.getMessage() and r.levelno == logging.WARNING for r in caplog.records):
            return True
        time.sleep(0.01)
    return False


def test_server_absent(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        with Container(declared(name="absent"), servers=f"127.0.0.1:{taken.getsockname()[1]}"):
            assert logged(caplog, "is shivad running, and is that its port for containers?")


def test_wrong_port(caplog: pytest.LogCaptureFixture) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as http,
        Container(declared(name="astray"), servers=f"127.0.0.1:{http.getsockname()[1]}"),
    ):
        http.accept()[0].close()
        assert logged(caplog, "is that the server's port for containers")


def test_unknown_host(caplog: pytest.LogCaptureFixture) -> None:
    resolver = Resolver([Address("no.such.host.invalid", 7000)], lambda found: None)
    resolver.start()
    assert logged(caplog, "cannot resolve the name of the server no.such.host.invalid")
    resolver.stop()


def test_any_reason_of_a_failed_row_becomes_a_text() -> None:
    batch = Batch(3)
    for row, reason in enumerate((123, ValueError("bad"), "text")):
        batch.fail(row, reason)
    assert batch.errors == {0: "123", 1: "ValueError: bad", 2: "text"}

"""A container as a process: signals, children, and a model that holds the interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from echo_model import ask
from fake_server import Fake

SCRIPT = """
import time
from shiva_container import Tensor, model, serve

@model(name="s", inputs=[Tensor("x", "FP32", [-1, 2])], outputs=[Tensor("y", "FP32", [-1, 2])])
def predict(x):
    print("in", flush=True)
    time.sleep(DELAY)
    return x

serve()
print("end", flush=True)
"""


@contextmanager
def start(tmp_path: Path, servers: str, script: str) -> Iterator[subprocess.Popen[str]]:
    path = tmp_path / "served.py"
    path.write_text(script)
    process = subprocess.Popen(
        [sys.executable, str(path)],
        env={**os.environ, "SHIVA_SERVERS": servers},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with its children


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_drains_on_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    with Fake() as fake, start(tmp_path, fake.endpoint, SCRIPT.replace("DELAY", "0.3")) as process:
        peer, _ = fake.hello()
        batch_id = ask(fake, peer)
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        process.send_signal(number)
        fake.wait_for(b"draining")
        assert "outputs" in fake.result(batch_id)[0]
        fake.goodbye(peer, reconnect=False)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 0, err
        assert out == "end\n"
        assert "model s/1 registered with fake/1" in err


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with Fake() as fake, start(tmp_path, fake.endpoint, SCRIPT.replace("DELAY", "3600")) as process:
        peer, _ = fake.hello()
        ask(fake, peer)
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        process.send_signal(signal.SIGTERM)
        fake.wait_for(b"draining")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode == 0


def test_a_second_signal_may_come_within_the_first(tmp_path: Path) -> None:
    nested = """
import signal
from shiva_container import Container
drain = Container.drain
def signalled(self, timeout):
    Container.drain = drain
    drain(self, timeout)
    signal.raise_signal(signal.SIGTERM)
Container.drain = signalled
"""
    with Fake() as fake, start(tmp_path, fake.endpoint, nested + SCRIPT.replace("DELAY", "3600")) as process:
        peer, _ = fake.hello()
        ask(fake, peer)
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode == 0


ASIDE = """
import signal, threading, time
threading.Thread(target=time.sleep, args=[3600], daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # so that the thread above gets it
"""


def test_a_signal_that_does_not_wake_the_main_thread_is_heard(tmp_path: Path) -> None:
    with Fake() as fake, start(tmp_path, fake.endpoint, ASIDE + SCRIPT.replace("DELAY", "0")) as process:
        peer, _ = fake.hello()
        process.send_signal(signal.SIGTERM)
        fake.wait_for(b"draining")
        fake.goodbye(peer, reconnect=False)
        assert process.wait(20) == 0


FORKING = """
import multiprocessing
import time
from shiva_container import Tensor, model, serve

@model(name="fork", inputs=[Tensor("x", "FP32", [-1, 2])], outputs=[Tensor("y", "FP32", [-1, 2])])
def predict(x):
    fork = multiprocessing.get_context("fork")
    begun = fork.Event()
    worker = fork.Process(target=work, args=[begun], daemon=True)
    worker.start()
    begun.wait()
    worker.terminate()
    worker.join(10)
    assert not worker.is_alive()
    return x

def work(begun):
    begun.set()
    while True:  # a signal just before a sleep does not end it
        time.sleep(0.01)

serve()
"""


def test_processes_that_the_model_forks_end_by_a_signal(tmp_path: Path) -> None:
    with Fake() as fake, start(tmp_path, fake.endpoint, FORKING) as process:
        peer, _ = fake.hello()
        assert "outputs" in fake.result(ask(fake, peer))[0]
        process.send_signal(signal.SIGTERM)
        fake.wait_for(b"draining")
        fake.goodbye(peer, reconnect=False)
        assert process.wait(20) == 0


HOGGING = """
import ctypes
from shiva_container import Tensor, model, serve

hold = ctypes.PyDLL(None).usleep  # unlike CDLL, PyDLL keeps the interpreter's lock

@model(name="hog", inputs=[Tensor("x", "FP32", [-1, 2])], outputs=[Tensor("y", "FP32", [-1, 2])])
def predict(x):
    hold(1_500_000)
    return x

serve()
"""


def test_a_model_that_holds_the_lock_does_not_make_the_server_look_dead(tmp_path: Path) -> None:
    with Fake(heartbeat_ms=50, dead_after_ms=1000) as fake, start(tmp_path, fake.endpoint, HOGGING):
        peer, _ = fake.hello()
        for _ in range(3):
            assert "outputs" in fake.result(ask(fake, peer))[0]
        assert len(fake.seen(b"hello")) == 1, "the container gave up a server whose heartbeats lay unread"


CHILDREN = """
import os, sys, time
import numpy as np
from shiva_container import Tensor, model, serve

def fork(x):
    if os.fork():
        return True
    if x[0, 0] == 1:
        raise ValueError("in the child")
    if x[0, 0] == 2:
        sys.exit(3)
    return False

@model(name="s", per_row=PER_ROW, inputs=[Tensor("x", "FP32", [-1, 2])], outputs=[Tensor("y", "FP32", [-1, 2])])
def predict(x):
    return x + 10 if fork(x.reshape(-1, 2)) else x

serve()
"""


def states(pid: int) -> list[str]:
    """The states of a process's children."""
    lists = [(task / "children").read_text().split() for task in Path(f"/proc/{pid}/task").iterdir()]
    children = [child for one in lists for child in one]
    return [Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] for child in children]


@pytest.mark.parametrize("per_row", [False, True])
def test_a_child_that_a_function_forks_answers_nothing(tmp_path: Path, per_row: bool) -> None:
    with Fake() as fake, start(tmp_path, fake.endpoint, CHILDREN.replace("PER_ROW", str(per_row))) as process:
        peer, _ = fake.hello()
        for kind in range(3):
            sent = np.array([[kind, 0], [kind, 0]], "f4")
            _, (frame,) = fake.result(fake.batch(peer, 2, [("x", "FP32", [2, 2], sent.tobytes())]))
            assert np.frombuffer(frame, "f4").tolist() == (sent + 10).reshape(-1).tolist()
        limit = time.monotonic() + 20
        while (now := states(process.pid)) != ["Z"] * 3 * (1 + per_row):  # all have ended: nobody waits for them
            assert time.monotonic() < limit, now
            time.sleep(0.01)
        process.kill()
        assert process.stderr is not None
        assert process.stderr.read().count("ValueError: in the child") == 1 + per_row


LOST = """
import os
from shiva_container import Tensor, model, serve

@model(name="s", inputs=[Tensor("x", "FP32", [-1, 2])], outputs=[Tensor("y", "FP32", [-1, 2])])
def predict(x):
    os.closerange(3, 1000)
    return x

serve()
"""


def test_a_process_that_has_lost_its_descriptors_ends(tmp_path: Path) -> None:
    with Fake() as fake, start(tmp_path, fake.endpoint, LOST) as process:
        peer, _ = fake.hello()
        ask(fake, peer)
        _, err = process.communicate(timeout=20)
        assert process.returncode != 0, err

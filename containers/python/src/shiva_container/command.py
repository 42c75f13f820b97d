"""The command ``python -m shiva_container``.

python -m shiva_container serve yolo11n.onnx     a model file, a Python file, or a folder
python -m shiva_container check model.py         the same without a server, on made-up rows
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .check import check_model, load
from .container import serve
from .declared import declared
from .files import READERS, Network, Options, Unusable, is_model, processors, read
from .models import Model
from .proof import MOST, Verdict, prove, unproven
from .served import serving
from .tasks import TASKS, form, seeing
from .tensors import DeclarationError, is_part
from .threads import divided
from .warm import warm

log = logging.getLogger("shiva_container")

PARENT = "SHIVA_PARENT"
"""The variable by which each of several processes knows the one that has started it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0 if every model in the file is fit to serve, or has been served to the end."""
    parser = argparse.ArgumentParser(prog="python -m shiva_container")
    commands = parser.add_subparsers(dest="command", required=True)
    served = commands.add_parser("serve", help="serve a model file, or the models that a Python file declares")
    checked = commands.add_parser("check", help="try the models of a file with made-up rows, without a server")
    for one in (served, checked):
        _describe(one)
    served.add_argument("--replicas", type=int, default=1, help="number of processes that serve the file (default: 1)")
    checked.add_argument("--rows", type=int, default=4, help="rows of the larger batch that is tried (default: 4)")
    checked.add_argument("--dim", type=int, default=4, help="size to try for dimensions declared as -1 (default: 4)")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        if options.command == "check":
            if options.rows < 1 or options.dim < 0:
                parser.error("--rows must be at least 1, --dim at least 0")
            return _check(options)
        if options.replicas < 1:
            parser.error("--replicas must be at least 1")
        if options.replicas > 1:
            return _replicate(sys.argv[1:] if arguments is None else arguments, options.replicas)
        if parent := os.environ.pop(PARENT, ""):
            _follow(int(parent))
        return _serve(options)
    except (Unusable, DeclarationError) as e:
        print(e, file=sys.stderr)
        return 1


def _describe(parser: argparse.ArgumentParser) -> None:
    kinds = ", ".join(f"*{one}" for one in READERS)
    parser.add_argument("file", type=Path, help=f"*.py, {kinds}, or a folder with one of them")
    parser.add_argument(
        "--name",
        type=_part,
        default=os.environ.get("MODEL_NAME", ""),
        help="name of the model (default: $MODEL_NAME, or the name of the file)",
    )
    parser.add_argument(
        "--version",
        type=_part,
        default=os.environ.get("MODEL_VERSION") or "1",
        help="version of the model (default: $MODEL_VERSION, or 1)",
    )
    parser.add_argument(
        "--device",
        default="auto",
        help="cpu, cuda:0, openvino:GPU, or auto, the best one that works (default: auto); if you list several, "
        "separated by commas, the processes take turns",
    )
    parser.add_argument(
        "--batch",
        default="auto",
        type=_batch,
        help="auto: test whether rows may share batches (default); a number: the same, with at most so many rows; off: "
        "one request at a time; force: rows share batches, without a test",
    )
    parser.add_argument(
        "--as",
        dest="task",
        default="auto",
        choices=("auto", "raw", *TASKS),
        help="task of the network: auto, as its metadata say (default); raw, the unchanged network; or one of the "
        "tasks",
    )
    parser.add_argument(
        "--declare",
        default="",
        help="inputs and outputs as clients see them, in JSON (the server sets this for a config.pbtxt)",
    )
    parser.add_argument("--trust", action="store_true", help="allow files that execute code when they are read")


def _part(text: str) -> str:
    """A name or a version, which the model would refuse only after its file was read and tried."""
    if text and not is_part(text):
        raise argparse.ArgumentTypeError(f"expected printable text without '/', got {text!r}")
    return text


def _batch(text: str) -> str:
    if text not in ("auto", "off", "force") and not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r}: expected auto, off, force, or a number of rows")
    return text


def _serve(options: argparse.Namespace) -> int:
    path = find(options.file)
    _interrupt_nobody()
    if path.suffix == ".py":
        serve(*_python(path, options))
        return 0
    models, verdict = _network(path, options, warming=True)
    log.info("%s on %s, %s", ", ".join(map(str, models)), models[0].parameters["device"], verdict)
    serve(*models)
    return 0


def _interrupt_nobody() -> None:
    """Have threads of this process wait for a processor, rather than take it from a running one.

    Where processors are idle, nothing changes. At the end of each operator, ONNX Runtime's threads
    wait for the last one by spinning, whatever its settings. Where several networks are busy, each
    thread that is woken up would interrupt one of another network, for which others then spin. From
    a thread that waits, its work is taken back by the one that gave it. Threads and processes
    inherit this. A policy that whoever started the process has chosen stays. Only Linux has this
    one. A sandbox may forbid it, and some C libraries know none: then the process is slower.
    """
    if not hasattr(os, "SCHED_BATCH"):
        return
    with contextlib.suppress(OSError):
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _check(options: argparse.Namespace) -> int:
    path = find(options.file)
    if path.suffix == ".py":
        try:
            models = _python(path, options)
        except Unusable:
            raise
        except (Exception, SystemExit):
            traceback.print_exc()
            print(f"{path}: cannot be loaded", file=sys.stderr)
            return 1
        return int(not all([check_model(model, options.rows, options.dim) for model in models]))
    models, verdict = _network(path, options)
    for model in models:
        print(f"model {model}: {model.platform} on {model.parameters['device']}")
        for kind, tensors in (("in ", model.inputs), ("out", model.outputs)):
            for tensor in tensors:
                print(f"  {kind} {tensor}")
    print(f"  {verdict}")
    return 0


def find(path: Path) -> Path:
    """The file to serve: in a folder model.py, or else the only model file."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise Unusable(f"{path}: there is no such file or folder")
    if (path / "model.py").is_file():
        return path / "model.py"
    fitting = sorted(one for one in path.iterdir() if one.is_file() and is_model(one))
    if len(fitting) > 1:
        raise Unusable(f"{path}: {', '.join(one.name for one in fitting)}: expected one of them")
    if not fitting:
        there = ", ".join(sorted(one.name for one in path.iterdir())) or "nothing"
        kinds = ", ".join(f"*{one}" for one in READERS)
        raise Unusable(f"{path}: expected model.py, or a file {kinds}, and there is {there}")
    return fitting[0]


def _python(path: Path, options: argparse.Namespace) -> list[Model[..., Any]]:
    """The models that a file declares. A single model takes the given name."""
    models = load(str(path))
    if not models:
        raise Unusable(f"{path}: no function is decorated with @model")
    if options.name and len(models) == 1:
        models[0].name = options.name
    elif options.name and options.name not in [one.name for one in models]:
        log.warning("%s declares %s, and none is called %s", path, ", ".join(map(str, models)), options.name)
    return models


def _network(path: Path, options: argparse.Namespace, warming: bool = False) -> tuple[list[Model[..., Any]], Verdict]:
    """The models of a model file: the network and, where it is known what it is for, one that gets
    pictures and has the name, so that the network is NAME-raw."""

    def reading(threads: int = 0) -> Network:
        network = read(path, Options(device=_turn(options.device), trust=options.trust, threads=threads))
        return declared(network, options.declare) if options.declare else network

    before = path.stat()
    network = reading()
    most = int(options.batch) if options.batch.isdecimal() else 0
    verdict = (
        unproven(network, options.batch) if options.batch in ("off", "force") else prove(network, most=most or MOST)
    )
    if most and (verdict.most == 0 or verdict.most > most):
        verdict = replace(verdict, most=most)
    if warming:
        log.info("warmed up with batches of %s", ", ".join(map(str, warm(network, verdict))) or "one size")
        network = divided(network, verdict, path, before, processors(), lambda: reading(threads=1))
    name, version = options.name or path.stem, options.version
    task = {"auto": "", "raw": None}.get(options.task, options.task)
    found = None if task is None else form(network, verdict, path, task)
    if found is None and options.task == "auto" and (said := network.metadata.get("task")):
        why = f"{', '.join(TASKS)} are known" if said not in TASKS else "not in a form that is known"
        log.info("%s: its task is %s, and %s: the network is served as it is", path, said, why)
    if found is None:
        return [serving(network, verdict, name=name, version=version)], verdict
    return [
        seeing(network, verdict, found, name=name, version=version),
        serving(network, verdict, name=f"{name}-raw", version=version),
    ], verdict


def _turn(devices: str) -> str:
    """The one of several devices that this process takes: the supervisor says which one it is."""
    several = [one.strip() for one in devices.split(",")]
    number = os.environ.get("SHIVA_REPLICA", "0")
    return several[int(number) % len(several) if number.isdecimal() else 0]


def _replicate(arguments: Sequence[str], replicas: int) -> int:
    """Serve from several processes until one of them ends, or until SIGTERM or SIGINT."""
    environment = os.environ | {"SHIVA_CPUS": f"{processors() / replicas:g}", PARENT: str(os.getpid())}
    command = [sys.executable, "-m", "shiva_container", *arguments, "--replicas", "1"]
    processes: list[subprocess.Popen[bytes]] = []
    asked: list[int] = []

    def forward(number: int, _: object) -> None:
        asked.append(number)
        for one in processes:
            one.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    for replica in range(replicas):
        if not asked:
            own = environment | {"SHIVA_REPLICA": str(replica)}
            processes.append(subprocess.Popen(command, env=own, start_new_session=True))
    if asked:  # while the last one was started, so that it has not been told
        for one in processes[-1:]:
            one.terminate()
    while processes and all(one.poll() is None for one in processes):
        time.sleep(0.1)
    if not asked:  # a second signal would end those that still answer
        forward(signal.SIGTERM, None)
    return max((abs(one.wait()) for one in processes), default=0)


def _follow(parent: int) -> None:
    """End with the process that has started this one, even if it was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        log.warning("the process that has started this one has ended")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="shiva-parent", daemon=True).start()

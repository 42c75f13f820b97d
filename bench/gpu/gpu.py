"""What a device gives a network in a file, in at most eight minutes.

    gpu.py [--device cuda:0] [--seconds 8] [--side 224] [--width 64] [--blocks 2]

On a machine with a GPU: `pip install onnxruntime-gpu` in place of onnxruntime, and `--device cpu`
tries the script without one. bin/shivad and bin/shivactl must have been built. It checks that

- the network is executed where it was promised, and that a device that is not there is refused,
- the proof of its rows holds there, and their answers are those of the CPU,

and measures rows per second and latency for requests of 1 to 32 rows in closed loops, by one process
and by two on the same device, and the device's memory before, during and after. It exits with 1 if
something that it checks does not hold.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import residual
from shiva_container.files import Options, Unusable, read
from shiva_container.proof import Way, prove

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "bench" / "threads"))

from threads import Server, until

ROWS = (1, 2, 4, 8, 16, 32)
LIMIT = 8 * 60
"""Seconds, from the start: what is not measured by then is left out, and the report says so."""

began = time.monotonic()
failed: list[str] = []


def check(holds: bool, what: str) -> None:
    print(f"{'holds' if holds else 'DOES NOT HOLD'}: {what}", flush=True)
    if not holds:
        failed.append(what)


def memory() -> int | None:
    """MiB of all GPUs in use, or None without nvidia-smi."""
    if not shutil.which("nvidia-smi"):
        return None
    said = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
        capture_output=True,
        check=False,
        text=True,
    )
    return sum(map(int, said.stdout.split())) if said.returncode == 0 else None


def promises(path: Path, device: str) -> None:
    """The device, the proof, and the answers, without a server."""
    try:
        network = read(path, Options(device=device))
    except Unusable as e:
        check(False, f"the network is executed on {device}: {e}")
        raise SystemExit(1) from e
    check(
        network.device == device,
        f"asked for {device}, it is executed on {network.device}",
    )
    try:
        read(path, Options(device="cuda:99"))
        check(False, "cuda:99 is refused")
    except Unusable as e:
        check(True, f"cuda:99 is refused: {e}")
    start = time.monotonic()
    verdict = prove(network)
    check(verdict.way is Way.ROWS, f"{verdict} ({time.monotonic() - start:.1f} s)")
    rows = np.random.default_rng(3).random((4, *network.inputs[0].shape[1:]), np.float32)
    here, there = (
        network.run([rows])[0],
        read(path, Options(device="cpu")).run([rows])[0],
    )
    apart = float(np.abs(here - there).max() / np.abs(there).max())
    check(apart < 1e-2, f"its answers differ from the CPU's by {apart:.1e} of the largest")


def closed_loops(server: Server, name: str, data: Path, seconds: float) -> dict[str, Any]:
    """A closed loop with eight clients, whose requests are the rows in a file."""
    command: Sequence[Any] = [
        TOP / "bin/shivactl",
        "--addr",
        server.tcp,
        "bench",
        name,
        "--data",
        data,
    ]
    said = subprocess.run(
        [*command, "--conns", "8", "--for", f"{seconds}s", "--json"],
        capture_output=True,
        check=False,
    )
    if said.returncode:
        raise SystemExit(f"shivactl bench: {said.stderr.decode()}")
    answer: dict[str, Any] = json.loads(said.stdout)
    return answer


def measure(folder: Path, path: Path, options: argparse.Namespace, replicas: int) -> None:
    serve = [
        sys.executable,
        "-m",
        "shiva_container",
        "serve",
        str(path),
        "--device",
        options.device,
        "--name",
        "net",
    ]
    before = memory()
    server = Server(folder, {"net": (serve, replicas, "")}, None)
    try:
        closed_loops(server, "net", folder / "8.npy", 2)  # until batches have their size
        for rows in ROWS:
            if time.monotonic() - began > LIMIT - 2 * options.seconds:
                print(f"requests of {rows} rows and more: not measured, the eight minutes are over")
                break
            got = closed_loops(server, "net", folder / f"{rows}.npy", options.seconds)
            rate, latency = rows * got["answered"] / got["seconds"], got["latency_ms"]
            print(
                f"{replicas} on {options.device}, requests of {rows:2} rows: {rate:7.0f} rows/s, "
                f"p50 {latency['p50']:.1f} ms, p99 {latency['p99']:.1f} ms, {got['failed']} failed",
                flush=True,
            )
            check(got["failed"] == 0, f"every request of {rows} rows is answered")
        during = memory()
        server.unload("net")
        until("the model to be gone", lambda: server.replicas("net") == 0)
        if before is None or during is None:
            print("memory of the device: not measured, there is no nvidia-smi")
            return
        end = time.monotonic() + 20
        until("the memory to be given back, or 20 s", lambda: (memory() or 0) <= before + 64 or time.monotonic() > end)
        after = memory() or 0
        check(after <= before + 64, f"memory of the device: {before} MiB before, {during} loaded, {after} unloaded")
    finally:
        server.stop()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=8, help="of each measurement")
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = residual.write(
            folder / "net.onnx",
            side=options.side,
            width=options.width,
            blocks=options.blocks,
        )
        for rows in ROWS:
            np.save(
                folder / f"{rows}.npy",
                np.random.default_rng(rows).random((rows, 3, options.side, options.side), np.float32),
            )
        promises(path, options.device)
        for replicas in (1, 2):
            measure(folder, path, options, replicas)
    print(
        f"{time.monotonic() - began:.0f} s; "
        + (f"{len(failed)} of the checks do not hold" if failed else "all checks hold")
    )
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())

"""Rows per second of networks in files: with the threads that the server tells them, with those of
a grid by hand, and beside a container written by hand with equal threads.

    threads.py [-seconds 1] [-rounds 15] [-only PART]

Each part starts one server with a model for each way, so that the ways take turns within seconds:
idle models cost nothing. Turns are in reverse order every other round, ratios are taken within a
round, and their median counts. bin/shivad and bin/shivactl must have been built.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "bench" / "gpu"))

import residual

GRID = (1, 2, 4)
PARTS: Mapping[str, tuple[Sequence[str], int]] = {
    "one replica": (["large"], 1),
    "two replicas": (["large"], 2),
    "four replicas": (["large"], 4),
    "two networks": (["large", "small"], 1),
    "one processor": (["large"], 1),
}
"""The networks that get load at once, and the processes of each."""

BY_HAND = """
import sys
import onnxruntime
from shiva_container import Tensor, model, serve

path, name, threads = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(threads)
options.add_session_config_entry("session.intra_op.allow_spinning", "0")
session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
side = session.get_inputs()[0].shape[2]

@model(name=name, inputs=[Tensor("image", "FP32", [-1, 3, side, side])], outputs=[Tensor("scores", "FP32", [-1, 1000])])
def network(image):
    return session.run(None, {"image": image})[0]

serve()
"""


def free() -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{s.getsockname()[1]}"


@contextmanager
def quota() -> Iterator[Path | None]:
    """A cgroup whose processes may use one processor, or None if none can be made."""
    made = None
    for mount, file, text in (
        ("cpu", "cpu.cfs_quota_us", "100000"),
        ("", "cpu.max", "100000 100000"),
    ):
        folder = Path("/sys/fs/cgroup") / mount / f"shivad-threads-{os.getpid()}"
        try:
            folder.mkdir()
            (folder / file).write_text(text)
        except OSError:
            continue
        made = folder
        break
    try:
        yield made
    finally:
        if made:
            until("the cgroup to be empty", lambda: not (made / "cgroup.procs").read_text())
            made.rmdir()


def until(what: str, holds: Any) -> None:
    end = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < end, f"waited 300 s for {what}"
        time.sleep(0.1)


class Server:
    """A server with processes for every way of every network."""

    def __init__(
        self,
        folder: Path,
        commands: Mapping[str, tuple[Sequence[str], int, str]],
        group: Path | None,
    ) -> None:
        self.tcp, self.admin = free(), free()
        config = f"""
            rest.listen = []
            grpc.listen = []
            containers.listen = "ipc://{folder}/containers"
            tcp.listen = "{self.tcp}"
            admin.listen = "{self.admin}"
        """
        for name, (command, replicas, threads) in commands.items():
            config += (
                f'\n[[container]]\nname = "{name}"\nreplicas = {replicas}\ncommand = {json.dumps(list(command))}\n'
            )
            if threads:
                config += f'env = {{ SHIVA_CPUS = "{threads}" }}\n'
        (folder / "shivad.toml").write_text(config)
        self.log = (folder / "log").open("w+")
        enter = ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(group)] if group else []
        self.process = subprocess.Popen(
            [*enter, str(TOP / "bin/shivad"), "--config", str(folder / "shivad.toml")], stderr=self.log
        )
        self.wanted = sum(replicas for _, replicas, _ in commands.values())
        until("the models", self.ready)

    def ready(self) -> bool:
        assert self.process.poll() is None, Path(self.log.name).read_text()
        try:
            return self.replicas() >= self.wanted
        except OSError:
            return False

    def replicas(self, name: str = "") -> int:
        """The processes that serve a model, or all."""
        with urllib.request.urlopen(f"http://{self.admin}/v1/models") as answer:
            return sum(one["replicas"] for one in json.load(answer)["models"] if name in ("", one["name"]))

    def rates(self, names: Sequence[str], seconds: float) -> list[tuple[float, float]]:
        """Rows per second, and milliseconds of processor time for a row, of models that get load at
        once."""
        before = [self.seconds(name) for name in names]
        ctl = [str(TOP / "bin/shivactl"), "--addr", self.tcp, "bench"]
        loads = [
            subprocess.Popen(
                [*ctl, name, "--conns", "8", "--for", f"{seconds}s", "--json"],
                stdout=subprocess.PIPE,
            )
            for name in names
        ]
        answers = [json.loads(one.communicate()[0]) for one in loads]
        assert not any(one["failed"] for one in answers), answers
        spent = [self.seconds(name) - start for name, start in zip(names, before, strict=True)]
        return [
            (one["answered"] / one["seconds"], 1000 * cost / one["answered"])
            for one, cost in zip(answers, spent, strict=True)
        ]

    def seconds(self, name: str) -> float:
        """Processor time that the processes of a container have had."""
        with urllib.request.urlopen(f"http://{self.admin}/v1/status") as answer:
            pids = [one["pid"] for one in json.load(answer)["processes"] if one["name"] == name]
        ticks = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13] for pid in pids]
        return sum(map(int, [tick for pair in ticks for tick in pair])) / os.sysconf("SC_CLK_TCK")

    def unload(self, name: str) -> None:
        path, kind = f"http://{self.admin}/v1/models/{name}/unload", {"Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(path, b"{}", kind)).close()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def measure(part: str, folder: Path, networks: Mapping[str, Path], seconds: float, rounds: int) -> None:
    loaded, replicas = PARTS[part]
    with quota() if part == "one processor" else nullcontext() as group:
        if part == "one processor" and group is None:
            print(f"{part}: not measured, no cgroup with a quota of processors can be made here")
            return
        cores = 1 if group else len(os.sched_getaffinity(0))
        share = max(1, cores // replicas)
        by_hand = folder / "by_hand.py"
        by_hand.write_text(BY_HAND)
        commands: dict[str, tuple[Sequence[str], int, str]] = {}
        for net in loaded:
            file = str(networks[net])
            serve = [sys.executable, "-m", "shiva_container", "serve", file, "--name"]
            commands[f"{net}-told"] = ([*serve, f"{net}-told"], replicas, "")
            for threads in GRID:
                commands[f"{net}-{threads}"] = (
                    [*serve, f"{net}-{threads}"],
                    replicas,
                    str(threads),
                )
            hand = [sys.executable, str(by_hand), file, f"{net}-hand", str(share)]
            commands[f"{net}-hand"] = (hand, replicas, "")
        server = Server(folder, commands, group)
        ways = ["told", *map(str, GRID), "hand"]
        try:
            for way in ways:
                server.rates([f"{net}-{way}" for net in loaded], 1)  # until batches have their size
            turns = []
            for number in range(rounds):
                order = ways if number % 2 == 0 else ways[::-1]
                turns.append({way: server.rates([f"{net}-{way}" for net in loaded], seconds) for way in order})
        finally:
            server.stop()
    report(part, loaded, turns)


def report(part: str, loaded: Sequence[str], turns: Sequence[Mapping[str, Sequence[tuple[float, float]]]]) -> None:
    """The ratios within the rounds. Networks count alike, however fast they are."""
    whole = [statistics.median(made[i][0] for turn in turns for made in turn.values()) for i in range(len(loaded))]
    scores = [
        {way: sum(rate / of for (rate, _), of in zip(made, whole, strict=True)) for way, made in turn.items()}
        for turn in turns
    ]
    medians = {way: statistics.median(one[way] for one in scores) for way in scores[0]}
    best = max(map(str, GRID), key=lambda way: medians[way])
    for name, over in ((f"the best of the grid, {best} threads", best), ("the container by hand", "hand")):
        ratios = sorted(one["told"] / one[over] for one in scores)
        print(f"{part}: {statistics.median(ratios):.2f} of {name} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    costs = [turn["hand"][i][1] / turn["told"][i][1] for turn in turns for i in range(len(loaded))]
    print(f"{part}: {statistics.median(costs):.2f} of the container by hand in rows per second of processor time")
    for i, net in enumerate(loaded):
        rows = {way: statistics.median(turn[way][i][0] for turn in turns) for way in turns[0]}
        print(f"    {net}, rows/s: " + ", ".join(f"{way} {rate:.0f}" for way, rate in rows.items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-seconds", type=float, default=1)
    parser.add_argument("-rounds", type=int, default=15)
    parser.add_argument("-only", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        networks = {
            "large": residual.write(folder / "large.onnx", side=64, width=16, blocks=2),
            "small": residual.write(folder / "small.onnx", side=32, width=16, blocks=1),
        }
        for part in PARTS:
            if options.only in part:
                measure(part, folder, networks, options.seconds, options.rounds)


if __name__ == "__main__":
    main()

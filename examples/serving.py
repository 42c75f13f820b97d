"""What run.py of several examples needs: a shivad that runs their containers, and when they serve."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from shiva_client import ShivaError


@contextmanager
def server(shivad: str, example: Path, models: Mapping[str, int]) -> Iterator[str]:
    """The address of a shivad with the pipeline of an example's directory.

    It runs ``container.py`` there, with the name of each model, in so many processes.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as folder:
        config = [f'[containers]\nlisten = ["ipc://{folder}/containers.sock"]\n']
        for name, replicas in models.items():
            command = [sys.executable, str(example / "container.py"), name]
            config.append(f'[[container]]\nname = "{name}"\ncommand = {command}\nreplicas = {replicas}\n')
        path = Path(folder) / "shivad.toml"
        path.write_text("\n".join([*config, (example / "pipeline.toml").read_text()]))
        doors = ["--tcp", address, "--rest", "", "--grpc", "", "--admin", "", "--log-level", "warn"]
        process = subprocess.Popen([shivad, "--config", str(path), *doors])
        try:
            yield address
        finally:
            process.terminate()
            process.wait(60)


def wait_for(ask: Callable[[], object]) -> None:
    """Wait until there is an answer: containers have networks to load."""
    until = time.monotonic() + 120
    while True:
        try:
            ask()
            return
        except ShivaError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)

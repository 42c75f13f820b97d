"""Trials of MLPerf LoadGen's server scenario on a model behind Shiva.

    loadgen.py HOST:PORT TARGET_MS REQUEST

REQUEST is one Shiva message in hex. Each line of standard input is a trial, "RATE SECONDS SEED";
each line of standard output is the result of one: its number of requests, its percentiles of the
latency, and the number of answers that were errors.
"""

import json
import selectors
import socket
import struct
import sys
import tempfile
import threading
from pathlib import Path

import mlperf_loadgen as lg

CONNECTIONS = 16
HEADER = 12
SIZES = {0: 2, 1: 4, 2: 8, 3: 1, 4: 1}  # bytes of the dtypes that the model may answer with


class Connection:
    """A connection with the samples that are in flight on it, oldest first."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.waiting: list[int] = []
        self.got = b""

    def answers(self) -> list[bool]:
        """Read once, and return for each complete answer whether it is an error."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise SystemExit("the server closed a connection")
        self.got += data
        done = []
        while (end := self.end()) is not None:
            done.append(self.got[:end].endswith(b"!error"))
            self.got = self.got[end:]
        return done

    def end(self) -> int | None:
        """Where the first answer ends, if it is complete."""
        got = self.got
        if len(got) < HEADER:
            return None
        metadata, tensors, namespace = struct.unpack_from(">iBB", got, 4)
        at = HEADER
        for _ in range(tensors):
            if len(got) < at + 2:
                return None
            rank, dtype = got[at], got[at + 1]
            at += 2
            if len(got) < at + 4 * rank:
                return None
            size = SIZES[dtype]
            for n in struct.unpack_from(f">{rank}i", got, at):
                size *= n
            at += 4 * rank + size
        at += metadata + namespace
        return at if len(got) >= at else None


class Server:
    """The system under test: sends on its connections in turn, and completes samples."""

    def __init__(self, address: tuple[str, int], request: bytes) -> None:
        self.request = request
        self.connections = [Connection(address) for _ in range(CONNECTIONS)]
        self.turn = 0
        self.failed = 0
        threading.Thread(target=self.receive, daemon=True).start()

    def issue(self, samples: list[lg.QuerySample]) -> None:
        for sample in samples:
            connection = self.connections[self.turn]
            self.turn = (self.turn + 1) % CONNECTIONS
            connection.waiting.append(sample.id)
            connection.socket.sendall(self.request)

    def receive(self) -> None:
        selector = selectors.DefaultSelector()
        for connection in self.connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        while True:
            for key, _ in selector.select():
                for is_error in key.data.answers():
                    self.failed += is_error
                    lg.QuerySamplesComplete([lg.QuerySampleResponse(key.data.waiting.pop(0), 0, 0)])


def trial(server: Server, target_ms: float, rate: float, seconds: float, seed: int) -> dict[str, float]:
    settings = lg.TestSettings()
    settings.scenario = lg.TestScenario.Server
    settings.mode = lg.TestMode.PerformanceOnly
    settings.server_target_qps = rate
    settings.server_target_latency_ns = int(target_ms * 1e6)
    settings.server_target_latency_percentile = 0.99
    settings.min_duration_ms = int(seconds * 1e3)
    settings.min_query_count = 1
    settings.schedule_rng_seed = seed
    server.failed = 0
    with tempfile.TemporaryDirectory() as directory:
        output = lg.LogOutputSettings()
        output.outdir = directory
        log = lg.LogSettings()
        log.log_output = output
        sut = lg.ConstructSUT(server.issue, lambda: None)
        qsl = lg.ConstructQSL(1, 1, lambda _: None, lambda _: None)
        lg.StartTestWithLogSettings(sut, qsl, settings, log)
        lg.DestroyQSL(qsl)
        lg.DestroySUT(sut)
        report = {}
        for line in (Path(directory) / "mlperf_log_detail.txt").read_text().splitlines():
            if line.startswith(":::MLLOG "):
                entry = json.loads(line.removeprefix(":::MLLOG "))
                report[entry["key"]] = entry["value"]
    return {
        "requests": report["result_query_count"],
        "p50": report["result_50.00_percentile_latency_ns"],
        "p99": report["result_99.00_percentile_latency_ns"],
        "failed": server.failed,
    }


def main() -> None:
    host, port = sys.argv[1].rsplit(":", 1)
    server = Server((host, int(port)), bytes.fromhex(sys.argv[3]))
    for line in sys.stdin:
        rate, seconds, seed = line.split()
        print(json.dumps(trial(server, float(sys.argv[2]), float(rate), float(seconds), int(seed))), flush=True)


if __name__ == "__main__":
    main()

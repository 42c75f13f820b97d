"""The server's side of container RPC version 4, written from the protocol: a ROUTER in a thread."""

from __future__ import annotations

import itertools
import json
import queue
import random
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import zmq

Input = tuple[str, str, list[int], bytes]


def kept() -> str:
    """An endpoint that no other socket takes while no server is there.

    The kernel gives its port neither to an outgoing connection nor to a socket that asks for any
    port: Linux takes those from 32768 on.
    """
    while True:
        port = random.randrange(10000, 30000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return f"tcp://127.0.0.1:{port}"


class Fake:
    """Records what containers send; answers hello with welcome unless told otherwise."""

    def __init__(
        self,
        endpoint: str = "tcp://127.0.0.1:*",
        *,
        heartbeat_ms: float = 200,
        dead_after_ms: float = 5000,
        beat: bool = True,
        welcome: bool = True,
        refuse: str = "",
        limit: int = 1 << 30,
        parts: bool = False,
        **more: object,
    ) -> None:
        self._welcome: dict[str, Any] = {
            "protocol": 4,
            "server": "fake/1",
            "heartbeat_ms": heartbeat_ms,
            "dead_after_ms": dead_after_ms,
            "max_message_bytes": limit,
            "unknown key": None,
            **more,
        }
        self._beat = beat
        self._answers = welcome
        self._refuse = refuse
        self._parts = parts  # it says goodbye to a draining container, as a server does
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 2000)
        self._socket.bind(endpoint)
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._out: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()
        self._seen: list[tuple[float, bytes, list[bytes]]] = []
        self._news = threading.Condition()
        self._stop = threading.Event()
        self._ids = itertools.count(0x1122334455667788)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Send the queued messages, then close all connections at once."""
        self._stop.set()
        self._thread.join()
        self._socket.close()
        self._context.term()

    def _run(self) -> None:
        peers: set[bytes] = set()
        beat_at = 0.0
        while True:
            last = self._stop.is_set()
            while not self._out.empty():
                self._socket.send_multipart(self._out.get())
            if last:
                return
            if self._beat and time.monotonic() >= beat_at:
                for peer in peers:
                    self._socket.send_multipart([peer, b"heartbeat"])
                beat_at = time.monotonic() + self._welcome["heartbeat_ms"] / 1000
            if not self._socket.poll(2):
                continue
            peer, *frames = self._socket.recv_multipart()
            if frames[0] == b"hello" and self._refuse:
                self._socket.send_multipart([peer, b"refused", json.dumps({"error": self._refuse}).encode()])
            elif frames[0] == b"hello" and self._answers:
                self._socket.send_multipart([peer, b"welcome", json.dumps(self._welcome).encode()])
                peers.add(peer)
            elif frames[0] == b"draining" and self._parts:
                self._socket.send_multipart([peer, b"goodbye", b'{"reason":"drained","reconnect":false}'])
                peers.discard(peer)
            with self._news:
                self._seen.append((time.monotonic(), peer, frames))
                self._news.notify_all()

    def send(self, peer: bytes, *frames: bytes) -> None:
        self._out.put([peer, *frames])

    def seen(self, kind: bytes) -> list[tuple[bytes, list[bytes]]]:
        with self._news:
            return [(peer, frames) for _, peer, frames in self._seen if frames[0] == kind]

    def wait(self, test: Callable[[], Any], what: str, timeout: float = 20) -> Any:
        """Wait until ``test``, asked after each message, is true."""
        until = time.monotonic() + timeout
        with self._news:
            while True:
                if value := test():
                    return value
                left = until - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"{what}: not within {timeout} s; saw {[s[2][0] for s in self._seen]}")
                self._news.wait(left)

    def wait_for(self, kind: bytes, count: int = 1) -> tuple[bytes, list[bytes]]:
        """The ``count``-th message of a kind: (peer, frames)."""

        def test() -> Any:
            found = [(peer, frames) for _, peer, frames in self._seen if frames[0] == kind]
            return len(found) >= count and found[count - 1]

        return self.wait(test, f"{count} x {kind!r}")

    def hello(self, count: int = 1) -> tuple[bytes, dict[str, Any]]:
        peer, frames = self.wait_for(b"hello", count)
        return peer, json.loads(frames[1])

    def batch(
        self, peer: bytes, rows: int, inputs: list[tuple[str, str, list[int], bytes]], /, **header: object
    ) -> bytes:
        """Send a batch; its id."""
        batch_id = next(self._ids).to_bytes(8, "little")
        heads = [{"name": name, "datatype": kind, "shape": shape} for name, kind, shape, _ in inputs]
        head = {"rows": rows, "inputs": heads, "future": [1], **header}
        self.send(peer, b"batch", batch_id, json.dumps(head).encode(), *(data for *_, data in inputs))
        return batch_id

    def result(self, batch_id: bytes) -> tuple[dict[str, Any], list[bytes]]:
        """Wait for a batch's answer."""

        def test() -> Any:
            return [frames for _, _, frames in self._seen if frames[0] == b"result" and frames[1] == batch_id]

        frames = self.wait(test, f"result of {batch_id.hex()}")[0]
        return json.loads(frames[2]), frames[3:]

    def goodbye(self, peer: bytes, *, reconnect: bool, reason: str = "test") -> None:
        self.send(peer, b"goodbye", json.dumps({"reason": reason, "reconnect": reconnect}).encode())

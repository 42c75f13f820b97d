"""Publishes what a model sees in a stream: each answer as JSON, retained, to an MQTT broker.

    python examples/mqtt/publish.py [--server 127.0.0.1:6174] [--broker 127.0.0.1:1883] ...

The topic is MODEL/STREAM, and MODEL/STREAM/availability is "online" while there are answers,
"offline" otherwise: also if this program, the server or the camera has gone.

pip install ./shiva/python paho-mqtt
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from typing import Any

import paho.mqtt.client as mqtt
from shiva_client import Answer, Client, DeadlineExceeded, ShivaError


class Topic:
    """A topic, and the availability of what is published there."""

    def __init__(self, broker: str, name: str) -> None:
        self._name, self._state = name, "offline"
        self._lock = threading.Lock()  # the last state announced is the last one there was
        self._client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
        # The broker says so if this program ends, or no longer reaches it.
        self._client.will_set(f"{name}/availability", "offline", qos=1, retain=True)
        self._client.reconnect_delay_set(1, 10)
        self._client.on_connect = lambda *_: self._announce()  # also when it is back
        host, colon, port = broker.rpartition(":")
        self._client.connect_async(host if colon else broker, int(port) if colon else 1883, keepalive=5)
        self._client.loop_start()

    def _announce(self, state: str | None = None) -> None:
        with self._lock:
            self._state = state or self._state
            self._client.publish(f"{self._name}/availability", self._state, retain=True)

    def publish(self, answer: dict[str, Any]) -> None:
        """Publish an answer, unless the broker is away: it wants no old ones when it is back."""
        if self._client.is_connected():
            self._client.publish(self._name, json.dumps(answer), retain=True)
        if self._state == "offline":
            self._announce("online")

    def end(self) -> bool:
        """There are no answers any more. False: there were none before."""
        if self._state == "offline":
            return False
        self._announce("offline")
        return True

    def close(self) -> None:
        self.end()
        self._client.disconnect()
        self._client.loop_stop()


def document(answer: Answer) -> dict[str, Any]:
    """An answer as JSON, with its number and its age in milliseconds."""
    about = {key: answer.metadata[key] for key in ("seq", "captured_at", "age_ms") if key in answer.metadata}
    return about | {name: array.tolist() for name, array in answer.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", default="127.0.0.1:6174")
    parser.add_argument("--broker", default="127.0.0.1:1883")
    parser.add_argument("--model", default="cells")
    parser.add_argument("--stream", default="belt-3")
    parser.add_argument("--patience", type=float, default=2, help="seconds without an answer until it is offline")
    args = parser.parse_args()
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    topic = Topic(args.broker, f"{args.model}/{args.stream}")
    seen: Answer | None = None
    with Client(args.server, connect_timeout=args.patience) as client:
        while not stopping.is_set():
            try:
                # Every answer, or, if the broker or this program is slow, the newest.
                seen = client.latest(args.model, args.stream, after=seen, wait=True, timeout=args.patience)
                topic.publish(document(seen))
            except ShivaError as error:
                seen = None  # a camera or a server that is back may number its frames anew
                if topic.end():
                    print(f"publish: {error}", file=sys.stderr)
                if not isinstance(error, DeadlineExceeded):  # which has waited
                    stopping.wait(0.5)
    topic.close()


if __name__ == "__main__":
    main()

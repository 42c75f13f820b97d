"""Asks one server after the other for 3x + 1, with retries, until its input ends.

It asks only servers that report ready over HTTP. At the end it prints the outcomes of its
requests as JSON, as server/e2e/testdata/peer does.

    retry.py SHIVA_ADDRESS=HTTP_ADDRESS...
"""

import json
import sys
import threading
import time
import urllib.request
from collections import Counter

import numpy as np
from shiva_client import Client, NotAnswered, RemoteError


class Server:
    """One of the servers, and its client."""

    def __init__(self, addresses: str) -> None:
        """Use the server at "SHIVA_ADDRESS=HTTP_ADDRESS"."""
        shiva, http = addresses.split("=")
        self.client = Client(shiva, connect_timeout=5)
        self._health = f"http://{http}/v2/health/ready"

    def check(self) -> None:
        """Raise OSError unless the server is ready. The client reconnects by itself."""
        urllib.request.urlopen(self._health, timeout=5).close()


servers = [Server(addresses) for addresses in sys.argv[1:]]
right = wrong = lost = retries = 0
longest = 0.0
why: Counter[str] = Counter()
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()

n = 0
while not over.wait(0.005):
    n += 1
    began = time.monotonic()
    for turn in range(n, sys.maxsize):
        server = servers[turn % len(servers)]
        try:
            server.check()
            answer = server.client.infer("affine", np.array([[n]]), timeout=4)
        except (RemoteError, NotAnswered, OSError) as error:
            kind = type(error).__name__
            hopeless = isinstance(error, RemoteError) and not error.retryable
            if hopeless or time.monotonic() - began > 30:
                lost += 1
                why["lost: " + kind] += 1
                break
            retries += 1
            why[kind] += 1
            time.sleep(0.02)
        else:
            if answer["x"].item() == 3 * n + 1:
                right += 1
            else:
                wrong += 1
            break
    longest = max(longest, time.monotonic() - began)
print(json.dumps({"Right": right, "Wrong": wrong, "Lost": lost, "Retries": retries, "Longest": longest, "Why": why}))

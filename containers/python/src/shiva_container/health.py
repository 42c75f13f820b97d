"""Health over HTTP, for the supervisor of the process.

    GET /livez   200 while the models load, compute or wait for a server. 503 once a batch has been
                 in a model's function for too long: only a restart ends that.
    GET /readyz  200 when every model has loaded, and at least one server may send it batches.

The answers are JSON, {"ok": true}, or {"ok": false, "reason": "..."}. They come from threads of
their own, so that neither a long computation nor a slow server delays them.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

STUCK_SECONDS = 120.0
"""More than the three times ``execution_timeout``, 90 s, after which a server gives a call up."""
_ANSWER_SECONDS = 5.0


class Settings(NamedTuple):
    """The address where health is served, and when a call counts as stuck."""

    host: str
    port: int
    stuck: float

    @classmethod
    def read(cls, address: str | None, environment: Mapping[str, str] = os.environ) -> Settings | None:
        """The settings of ``host:port`` (``:port``: on all addresses), else of ``$SHIVA_HEALTH``.

        ``$SHIVA_HEALTH_STUCK`` has the seconds. None if neither names an address; ValueError if one
        is wrong.
        """
        text = environment.get("SHIVA_HEALTH", "") if address is None else address
        if not text:
            return None
        host, colon, number = text.rpartition(":")
        if not colon or not number.isdecimal() or int(number) > 65535:
            raise ValueError(f'health: expected "host:port" or ":port", got {text!r}')
        given = environment.get("SHIVA_HEALTH_STUCK", "") or str(STUCK_SECONDS)
        try:
            stuck = float(given)
        except ValueError:
            stuck = 0
        if not stuck > 0:
            raise ValueError(f"SHIVA_HEALTH_STUCK: expected a number of seconds above 0, got {given!r}")
        return cls(host.strip("[]"), int(number), stuck)


class Health:
    """Answers until it is closed. OSError if the address cannot be bound.

    ``asked`` has for each path a function that returns why the answer is no; "" is yes.
    """

    def __init__(self, settings: Settings, asked: Mapping[str, Callable[[], str]]) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = _ANSWER_SECONDS

            def do_GET(self) -> None:
                why = asked.get(self.path.partition("?")[0])
                if why is None:
                    self._answer(404, {"error": f"no such path: expected {' or '.join(asked)}"})
                elif reason := why():
                    self._answer(503, {"ok": False, "reason": reason})
                else:
                    self._answer(200, {"ok": True})

            def _answer(self, status: int, body: Mapping[str, object]) -> None:
                data = json.dumps(body).encode() + b"\n"
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing: a line for each probe would hide the other lines."""

        everywhere = not settings.host and socket.has_dualstack_ipv6()

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_INET6 if everywhere or ":" in settings.host else socket.AF_INET

            def server_bind(self) -> None:
                if everywhere:  # IPv4 as well
                    self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                socketserver.TCPServer.server_bind(self)  # HTTPServer's asks DNS for a name

            def handle_error(self, request: object, client_address: object) -> None:
                """Ignore the error: a client may hang up."""

        self._server = Server((settings.host, settings.port), Handler)
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="shiva-health", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

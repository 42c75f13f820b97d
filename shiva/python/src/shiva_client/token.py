"""Who the client is: a token, which the first message of a connection shows."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from .wire import Message


class Token:
    """Where the client has its token from: the one that it was given, or else the environment.

    A file that the environment names is read for each connection, so that its token can be
    replaced while the client is in use.
    """

    def __init__(self, given: str | None) -> None:
        """``$SHIVA_TOKEN`` goes before the file ``$SHIVA_TOKEN_FILE``. None: "" is read."""
        self._path: Path | None = None
        self._last = os.environ.get("SHIVA_TOKEN", "").strip() if given is None else given
        if given is None and not self._last and (path := os.environ.get("SHIVA_TOKEN_FILE")):
            self._path = Path(path)
            self._last = self._path.read_text().strip()

    def read(self) -> str:
        """The token that there is now. While a file has none, the one before."""
        if self._path:
            with suppress(OSError, UnicodeDecodeError):
                self._last = self._path.read_text().strip() or self._last
        return self._last


def introduction(token: str) -> Message:
    """The message that shows a token. If it is unknown, the server refuses what follows."""
    return Message("!whoami", {"token": token})

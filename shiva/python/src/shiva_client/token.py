"""The token that identifies the client, shown in the first message of a connection."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from .wire import Message


class Token:
    """The source of the client's token: the one that it was given, or else the environment.

    A file named by the environment is read for each connection, so that its token can be replaced
    while the client is in use.
    """

    def __init__(self, given: str | None) -> None:
        """``given`` None: ``$SHIVA_TOKEN``, else the file ``$SHIVA_TOKEN_FILE``, else ""."""
        self._path: Path | None = None
        self._last = os.environ.get("SHIVA_TOKEN", "").strip() if given is None else given
        if given is None and not self._last and (path := os.environ.get("SHIVA_TOKEN_FILE")):
            self._path = Path(path)
            self._last = self._path.read_text("utf-8-sig").strip()

    def read(self) -> str:
        """The current token. While the file has none, the previous one."""
        if self._path:
            with suppress(OSError, UnicodeDecodeError):
                self._last = self._path.read_text("utf-8-sig").strip() or self._last
        return self._last


def introduction(token: str) -> Message:
    """The message that shows a token. If the token is unknown, the server refuses later
    requests."""
    return Message("!whoami", {"token": token})

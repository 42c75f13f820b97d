"""Who the client is: a token, which the first message of a connection shows."""

from __future__ import annotations

import os
from pathlib import Path

from .wire import Message


def of(token: str | None) -> str:
    """That token, else ``$SHIVA_TOKEN``, else the file ``$SHIVA_TOKEN_FILE``, else none."""
    if token is not None:
        return token
    if text := os.environ.get("SHIVA_TOKEN", "").strip():
        return text
    if path := os.environ.get("SHIVA_TOKEN_FILE"):
        return Path(path).read_text().strip()
    return ""


def introduction(token: str) -> Message:
    """The message that shows the token. If it is unknown, the server refuses what follows."""
    return Message("!whoami", {"token": token})

"""The container's token, which shows in each registration who it is."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


class Token:
    """The source of the container's token: the given one, or else the environment.

    A file that the environment names is read for each registration, so that its token can be
    replaced while the container runs.
    """

    def __init__(self, given: str | None = None) -> None:
        """``$SHIVA_TOKEN`` precedes the file ``$SHIVA_TOKEN_FILE``. None: "" is read."""
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

"""Children that a function of the user forks."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from types import TracebackType


class OneProcess:
    """Code that must not go on in a child that it has forked.

    A child that comes back from the user's code would compute and answer batches, on its parent's
    sockets. It ends here instead, as it would after its own main program.
    """

    __slots__ = ("_pid",)

    def __enter__(self) -> None:
        self._pid = os.getpid()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._pid:
            end_child(error)


def end_child(error: BaseException | None) -> None:
    """End this process like a program that an exception has ended, or none."""
    status = 0
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        traceback.print_exception(error)
        status = 1
    for stream in (sys.stdout, sys.stderr):
        # There is none, or it is closed.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(status)

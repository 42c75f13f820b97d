"""Why a request has no outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .wire import Message


class ShivaError(Exception):
    """Any error of this package but for wrong arguments, which are ValueError and TypeError.

    Attributes:
        attempts: if several servers were tried, their addresses and what happened at each
    """

    attempts: Mapping[str, ShivaError] = {}

    def __str__(self) -> str:
        """What happened, and where if there were several."""
        if not self.attempts:
            return super().__str__()
        alike: dict[str, list[str]] = {}
        for name, error in self.attempts.items():
            alike.setdefault(Exception.__str__(error).removeprefix(f"{name}: "), []).append(name)
        return "no answer from any server: " + "; ".join(f"{', '.join(at)}: {why}" for why, at in alike.items())


class ProtocolError(ShivaError, ValueError):
    """What was received is no Shiva message, or what was to be sent cannot be one."""


class NotAnswered(ShivaError):
    """The request has no answer.

    Attributes:
        may_have_run: whether bytes of it may have reached the server; if not, it did not run
        why: the reason alone
    """

    def __init__(self, why: str, *, may_have_run: bool) -> None:
        super().__init__(f"{why} ({'it may have run' if may_have_run else 'it did not run'})")
        self.may_have_run, self.why = may_have_run, why


class Unreachable(NotAnswered):
    """No connection could be made."""


class ConnectionLost(NotAnswered):
    """The connection ended before the answer."""


class ClientClosed(NotAnswered):
    """The client was closed before the answer."""


class TimedOut(NotAnswered, TimeoutError):
    """No answer by the deadline. If the server itself answers in time, it is DeadlineExceeded."""


class RemoteError(ShivaError):
    """The server answered with an error.

    Attributes:
        type: its name, which is that of the class for those that this package knows
        message: what the server says
        code: as HTTP has it; 0 from servers that give none
        retryable: whether the same request may succeed later
        id: of the request
        metadata: all that the answer says
    """

    def __init__(self, metadata: dict[str, Any]) -> None:
        self.metadata = metadata
        self.type = str(metadata.get("type", "Error"))
        self.message = str(metadata.get("message", ""))
        code = metadata.get("code")
        self.code = code if isinstance(code, int) else 0
        self.retryable = metadata.get("retryable") is True
        self.id = metadata.get("id")
        super().__init__(f"{self.type}: {self.message}")


class Protocol(RemoteError):
    """The server could not read the message."""


class TooLarge(RemoteError):
    """The message is above a limit of the server."""


class InvalidInput(RemoteError):
    """The tensors do not fit the model, or the request contradicts itself."""


class NotFound(RemoteError):
    """There is no such model or route."""


class Overloaded(RemoteError):
    """A limit of the server was met."""


class Superseded(RemoteError):
    """A newer frame of the stream arrived before this one was executed.

    Attributes:
        by: the ``seq`` or the ``id`` of the newer one
    """

    def __init__(self, metadata: dict[str, Any]) -> None:
        super().__init__(metadata)
        self.by = metadata.get("by")


class Canceled(RemoteError):
    """The request was given up in the server."""


class Unauthenticated(RemoteError):
    """The server does not know the client's identity."""

    renewed = False  # there is another token now


class PermissionDenied(RemoteError):
    """The client's identity may not use the route."""


class DeadlineExceeded(RemoteError):
    """The deadline passed in the server."""


class Unavailable(RemoteError):
    """No container of the model is connected."""


class ContainerFailed(RemoteError):
    """The model failed on the request."""


class ContainerLost(RemoteError):
    """The container was lost while it had the request."""


class Draining(RemoteError):
    """The server is shutting down."""


class Internal(RemoteError):
    """A fault of the server."""


_KNOWN = {cls.__name__: cls for cls in RemoteError.__subclasses__()}


def raise_for(message: Message) -> None:
    """Raise what an answer says, if it is an error."""
    if message.namespace == "!error":
        raise _KNOWN.get(str(message.metadata.get("type")), RemoteError)(message.metadata)

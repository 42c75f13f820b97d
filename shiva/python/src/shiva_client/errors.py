"""Why a request has no outputs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .wire import Message


class ShivaError(Exception):
    """Any error of this package, except ValueError and TypeError for wrong arguments.

    Attributes:
        attempts: if several servers were tried, the error of each by its address
    """

    attempts: Mapping[str, ShivaError] = {}

    def __str__(self) -> str:
        """The error, or those of several servers with their addresses."""
        if not self.attempts:
            return super().__str__()
        alike: dict[str, list[str]] = {}
        for name, error in self.attempts.items():
            alike.setdefault(Exception.__str__(error).removeprefix(f"{name}: "), []).append(name)
        return "no answer from any server: " + "; ".join(f"{', '.join(at)}: {why}" for why, at in alike.items())


class ProtocolError(ShivaError, ValueError):
    """The bytes received are not a Shiva message, or a message cannot be sent."""


class NotAnswered(ShivaError):
    """The request has no answer.

    Attributes:
        may_have_run: whether the request, or part of it, may have reached the server; if not, it
            did not run
        why: the reason, without this
    """

    def __init__(self, why: str, *, may_have_run: bool) -> None:
        super().__init__(f"{why} ({'it may have run' if may_have_run else 'it did not run'})")
        self.may_have_run, self.why = may_have_run, why

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle, by which pools of processes pass errors on."""
        return partial(type(self), self.why, may_have_run=self.may_have_run), (), self.__dict__


class Unreachable(NotAnswered):
    """No connection could be made."""


class ConnectionLost(NotAnswered):
    """The connection ended before the answer."""


class ClientClosed(NotAnswered):
    """The client was closed before the answer."""


class TimedOut(NotAnswered, TimeoutError):
    """No answer by the deadline. If the server reports it in time, the error is
    DeadlineExceeded."""


class RemoteError(ShivaError):
    """The server answered with an error.

    Attributes:
        type: its name, which is that of the class for the types that this package knows
        message: the text of the server
        code: the HTTP status; 0 if the server gives none
        retryable: whether the same request may succeed later
        id: of the request
        metadata: of the answer
    """

    def __init__(self, metadata: dict[str, Any]) -> None:
        self.metadata = metadata
        self.type = str(metadata.get("type", "Error"))
        self.message = str(metadata.get("message", ""))
        code = metadata.get("code")
        self.code = code if isinstance(code, int) else 0
        self.retryable = metadata.get("retryable") is True
        self.id = metadata.get("id")
        # The texts of shivad begin with the words of the type: "invalid input: ...".
        head, colon, _ = self.message.partition(":")
        said = colon and head.replace(" ", "").lower() == self.type.lower()
        super().__init__(self.message if said else f"{self.type}: {self.message}")

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle, by which pools of processes pass errors on."""
        return type(self), (self.metadata,), self.__dict__


class Protocol(RemoteError):
    """The server could not read the message."""


class TooLarge(RemoteError):
    """The message exceeds a limit of the server."""


class InvalidInput(RemoteError):
    """The tensors do not fit the model, or the request contradicts itself."""


class NotFound(RemoteError):
    """There is no such model or route."""


class Overloaded(RemoteError):
    """A limit of the server was reached."""


class Superseded(RemoteError):
    """A newer frame of the stream arrived before this one was executed.

    Attributes:
        by: the ``seq`` or the ``id`` of the newer one
    """

    def __init__(self, metadata: dict[str, Any]) -> None:
        super().__init__(metadata)
        self.by = metadata.get("by")


class Canceled(RemoteError):
    """The request was cancelled in the server."""


class Unauthenticated(RemoteError):
    """The server does not know the client's identity."""

    renewed = False  # whether there is another token now


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
    """Raise the error that an answer reports, if any."""
    if message.namespace == "!error":
        raise _KNOWN.get(str(message.metadata.get("type")), RemoteError)(message.metadata)

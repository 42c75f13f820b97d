"""Ask models over the Shiva protocol: numpy arrays in, numpy arrays out.

    from shiva_client import Client

    with Client("localhost") as client:
        print(client.infer("digits", image)["label"])

``AsyncClient`` is the same for asyncio; ``stream`` of either is for cameras.
"""

from .aio import AsyncClient
from .aio_stream import AsyncStream
from .client import Client
from .errors import (
    Canceled,
    ClientClosed,
    ConnectionLost,
    ContainerFailed,
    ContainerLost,
    DeadlineExceeded,
    Draining,
    Internal,
    InvalidInput,
    NotAnswered,
    NotFound,
    Overloaded,
    PermissionDenied,
    Protocol,
    ProtocolError,
    RemoteError,
    ShivaError,
    Superseded,
    TimedOut,
    TooLarge,
    Unauthenticated,
    Unavailable,
    Unreachable,
)
from .frames import Result
from .request import Answer
from .stream import Stream
from .tls import TLS
from .wire import Message

__all__ = [
    "TLS",
    "Answer",
    "AsyncClient",
    "AsyncStream",
    "Canceled",
    "Client",
    "ClientClosed",
    "ConnectionLost",
    "ContainerFailed",
    "ContainerLost",
    "DeadlineExceeded",
    "Draining",
    "Internal",
    "InvalidInput",
    "Message",
    "NotAnswered",
    "NotFound",
    "Overloaded",
    "PermissionDenied",
    "Protocol",
    "ProtocolError",
    "RemoteError",
    "Result",
    "ShivaError",
    "Stream",
    "Superseded",
    "TimedOut",
    "TooLarge",
    "Unauthenticated",
    "Unavailable",
    "Unreachable",
]

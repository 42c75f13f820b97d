"""TLS with a server."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from .tensors import Buffer

RECORD = 16 << 10
"""The most bytes that one read of TLS returns."""
_WORDS = {"": False, "0": False, "false": False, "1": True, "true": True}
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNSUPPORTED_PROTOCOL", "PACKET_LENGTH_TOO_LONG")


@dataclass(frozen=True)
class TLS:
    """Settings of TLS with servers at "tls://host:port". Files are read for each connection.

    Attributes:
        ca: PEM file of the authorities to trust; None: those that the system trusts
        certificate: PEM file of the container's own certificate, for servers that request one
        key: PEM file of its key; None: it is in the same file
        server_name: the name in the server's certificate; None: the host of the address
        insecure: trust any certificate, and so any peer that answers
    """

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None
    insecure: bool = False

    @classmethod
    def from_environment(cls) -> TLS:
        """The settings in ``$SHIVA_TLS_CA``, ``_CERT``, ``_KEY``, ``_NAME`` and ``_INSECURE``."""
        ca, certificate, key, name = (os.environ.get(f"SHIVA_TLS_{what}") for what in ("CA", "CERT", "KEY", "NAME"))
        word = os.environ.get("SHIVA_TLS_INSECURE", "")
        if word.lower() not in _WORDS:
            raise ValueError(f"SHIVA_TLS_INSECURE: true or false expected, got {word!r}")
        return cls(ca or None, certificate or None, key or None, name or None, _WORDS[word.lower()])

    def context(self) -> ssl.SSLContext:
        """The context of these settings. A ValueError names the file that is wrong."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        try:
            if self.ca:
                context.load_verify_locations(self.ca)
            else:
                context.load_default_certs()
        except OSError as error:
            raise ValueError(f"certificates in PEM expected in the file ca = {self.ca!r}: {error}") from error
        if not self.certificate:
            if self.key:
                raise ValueError(f"the certificate of key = {self.key!r} is missing")
            return context

        def password() -> str:
            raise ValueError(f"a key without a password expected in {self.key or self.certificate!r}")

        try:
            context.load_cert_chain(self.certificate, self.key, password)
        except OSError as error:
            files = f"certificate = {self.certificate!r} and key = {self.key!r}"
            raise ValueError(f"a certificate and its key, in PEM, expected in {files}: {error}") from error
        return context


def os_error_text(error: OSError) -> str:
    """The text of a socket's error, which may be an error of TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    reason = error.reason or ""
    if reason in _NOT_TLS:
        return "it does not answer in TLS: is its address plain (tcp://)?"
    if "_ALERT_" in reason:
        return f"it refuses this container: {reason.partition('_ALERT_')[2].lower().replace('_', ' ')}"
    return error.strerror or str(error)


class Encrypted:
    """A socket with TLS that never blocks, as far as :class:`Connection` uses one.

    Its methods raise BlockingIOError where TLS has to wait for the socket. ``wants_write`` tells
    whether to write, until the handshake is over.
    """

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, name: str) -> None:
        """Take over the socket."""
        self.wants_write = False
        self._tls = context.wrap_socket(connected, server_hostname=name, do_handshake_on_connect=False)

    def shake(self) -> bool:
        """Continue the handshake; True when it is over. OSError if it fails."""
        self.wants_write = False
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLWantWriteError:
            self.wants_write = True
            return False
        return True

    @property
    def pending(self) -> bool:
        """Whether there are decrypted unread bytes, which no poller reports."""
        return self._tls.pending() > 0

    def recv(self, count: int) -> bytes:
        """Read at most a record; nothing at the end."""
        try:
            return self._tls.recv(count)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as e:
            raise BlockingIOError from e

    def recv_into(self, target: memoryview) -> int:
        """The same, into memory."""
        try:
            return self._tls.recv_into(target)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as e:
            raise BlockingIOError from e

    def send(self, data: Buffer) -> int:
        """Send some bytes. After a BlockingIOError it must be called with the same bytes again."""
        try:
            return self._tls.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as e:
            raise BlockingIOError from e

    def sendmsg(self, pieces: Sequence[Buffer]) -> int:
        """Send some of the pieces, with the same rule."""
        sent = 0
        for piece in pieces:
            try:
                count = self.send(piece)
            except BlockingIOError:
                if sent:
                    break
                raise
            sent += count
            if count < len(piece):
                break
        return sent

    def fileno(self) -> int:
        """The descriptor."""
        return self._tls.fileno()

    def shutdown(self, how: int) -> None:
        """Shut down a direction of the socket; bytes read after that are meaningless."""
        self._tls.shutdown(how)

    def close(self) -> None:
        """Close the socket."""
        self._tls.close()

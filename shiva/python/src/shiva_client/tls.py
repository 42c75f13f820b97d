"""TLS connections to a server."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

CHUNK = 256 << 10  # bytes that are encrypted at a time


@dataclass(frozen=True)
class TLS:
    """TLS settings for a server at "tls://host:port". Files are read again for each connection.

    Attributes:
        ca: PEM file with the trusted certificates; None: those that the system trusts
        certificate: PEM file with the client's certificate, for servers that ask for one
        key: PEM file with its key; None: it is in the same file
        server_name: the name in the server's certificate; None: the host of the address
        insecure: trust any certificate, and so any server
    """

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None
    insecure: bool = False

    def context(self) -> ssl.SSLContext:
        """The context for ssl. A ValueError names the faulty file."""
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
            raise ValueError(f"expected certificates in PEM in the file ca = {self.ca!r}: {error}") from error
        if not self.certificate:
            if self.key:
                raise ValueError(f"expected the certificate of key = {self.key!r}")
            return context

        def password() -> str:
            raise ValueError(f"expected a key without a password in {self.key or self.certificate!r}")

        try:
            context.load_cert_chain(self.certificate, self.key, password)
        except OSError as error:
            files = f"certificate = {self.certificate!r} and key = {self.key!r}"
            raise ValueError(f"expected a certificate and its key, in PEM, in {files}: {error}") from error
        return context


def lost(name: str, error: Exception | None, answered: bool) -> str:
    """Why a connection has ended, as far as known."""
    why = str(error) or type(error).__name__ if error else "the server closed the connection"
    if name.startswith("tls:") and isinstance(error, ConnectionError) and not answered:
        why += "; the server may not have accepted the client's certificate"
    return why


class Encrypted:
    """The methods of a socket that ``Connection`` uses, over TLS.

    One thread may read while another one writes, which ssl.SSLSocket does not support. Here the
    socket's calls wait outside the lock of the TLS state.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_name: str, timeout: float) -> None:
        """Make the handshake within ``timeout`` seconds. Takes ownership of the socket."""
        self._sock = sock
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._arrived, self._leaving, server_hostname=server_name)
        self._lock = threading.Lock()  # guards the three above
        self._block = bytearray(64 << 10)
        self._unsent = memoryview(b"")  # encrypted bytes
        self._taken = 0  # the caller's bytes that they encrypt
        try:
            self._shake(time.monotonic() + timeout)
        except BaseException:
            sock.close()
            raise

    def _shake(self, until: float) -> None:
        while True:
            self._sock.settimeout(max(0.001, until - time.monotonic()))
            try:
                self._tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                done = False
            except ssl.SSLError:
                with suppress(OSError):
                    self._sock.sendall(self._leaving.read())  # the alert, which has the reason
                raise
            self._sock.sendall(self._leaving.read())
            if done:
                return
            self._receive()

    def _receive(self) -> None:
        n = self._sock.recv_into(self._block)
        with self._lock:
            if n:
                self._arrived.write(memoryview(self._block)[:n])
            else:
                self._arrived.write_eof()

    def recv_into(self, buffer: memoryview) -> int:
        """Read at least a byte; 0: the end."""
        while True:
            with self._lock:
                try:
                    return self._tls.read(len(buffer), buffer)  # type: ignore[return-value]
                except ssl.SSLWantReadError:
                    pass
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    return 0  # messages have their length, so truncation is detected
            self._receive()

    def send(self, data: memoryview) -> int:
        """Send some of the data. After a TimeoutError, call it again with the same data."""
        if not self._unsent:
            with self._lock:
                self._taken = self._tls.write(data[:CHUNK])
                self._unsent = memoryview(self._leaving.read())
        while self._unsent:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
        return self._taken

    def settimeout(self, seconds: float) -> None:
        """Bound the socket's system calls."""
        self._sock.settimeout(seconds)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Set an option of the socket."""
        self._sock.setsockopt(level, option, value)

    @property
    def family(self) -> int:
        """The socket's address family."""
        return self._sock.family

    def shutdown(self, how: int) -> None:
        """End one direction or both."""
        self._sock.shutdown(how)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

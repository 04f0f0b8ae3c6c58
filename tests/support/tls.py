"""TLS in front of a server that has none itself: it ends the encryption on loopback and hands the bytes on.

The certificates beside this file are for these tests alone: ``ca.pem`` signed ``server.pem``, which is for localhost and 127.0.0.1
and holds its key.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from pathlib import Path
from types import TracebackType

__all__ = ["CA", "TlsFront"]

_FOLDER = Path(__file__).parent / "certificates"
CA = _FOLDER / "ca.pem"
_CHUNK = 65_536
_SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"


class TlsFront:
    """Listens on ``port``. With ``is_asked``, a client asks for TLS first, as PostgreSQL's do; else it begins with it.

    ``protocols`` are those of ALPN; gRPC asks for ``h2``.
    """

    def __init__(self, server_port: int, *, is_asked: bool = False, protocols: tuple[str, ...] = ()) -> None:
        self._server_port, self._is_asked = server_port, is_asked
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(_FOLDER / "server.pem")
        if protocols:
            self._context.set_alpn_protocols(protocols)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self.served = 0
        """How many clients got through the handshake."""

    def __enter__(self) -> TlsFront:
        self._go(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # A listener in accept is not woken by being closed, but by a last client.
        port, self._is_ending = self.port, True
        socket.create_connection(("127.0.0.1", port)).close()
        for each in list(self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    _is_ending = False

    def _go(self, function: object, *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if self._is_ending:
                client.close()
                return
            self._sockets.add(client)
            self._go(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            if self._is_asked:
                if client.recv(8, socket.MSG_WAITALL) != _SSL_REQUEST:
                    return
                client.sendall(b"S")
            with self._context.wrap_socket(client, server_side=True) as shown:
                self._sockets.add(shown)
                self.served += 1
                with socket.create_connection(("127.0.0.1", self._server_port)) as server:
                    self._sockets.add(server)
                    _Relay(shown, server).run()


class _Relay:
    """Bytes both ways. One thread does both: an encrypted socket must not be read and written at once."""

    def __init__(self, shown: ssl.SSLSocket, server: socket.socket) -> None:
        self._shown, self._server = shown, server

    def run(self) -> None:
        self._shown.setblocking(False)
        while True:
            select.select([self._shown, self._server], [], [])
            if not self._up() or not self._down():
                return

    def _up(self) -> bool:
        while True:
            try:
                data = self._shown.recv(_CHUNK)
            except ssl.SSLWantReadError:
                return True
            if not data:
                return False
            self._server.sendall(data)

    def _down(self) -> bool:
        self._server.setblocking(False)
        try:
            data = self._server.recv(_CHUNK)
        except BlockingIOError:
            return True
        finally:
            self._server.setblocking(True)
        self._shown.setblocking(True)
        self._shown.sendall(data)
        self._shown.setblocking(False)
        return bool(data)

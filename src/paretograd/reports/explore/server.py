"""The page's server: http on this machine only, in a thread. It sends the page, and answers it with numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socket import SHUT_RDWR, socket
from socketserver import ThreadingTCPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from paretograd.errors import InputError, ParetogradError
from paretograd.reports.explore.answers import answer
from paretograd.reports.explore.page import page, policy

HOST = "127.0.0.1"
#: Names of this machine, by which the page may be asked for. Any other is refused: it may be a foreign site's name
#: that was made to point here (DNS rebinding).
_OURS = {"127.0.0.1", "localhost"}
#: Bytes; a request of the page has at most two thousand.
LARGEST = 65536
_JSON = "application/json"


@contextmanager
def serving(port: int = 0) -> Iterator[str]:
    """Serve the page until the context ends, and yield its address.

    Args:
        port: 0 lets the system choose a free one.
    """
    try:
        server = _Server((HOST, port), _Handler)
    except (OSError, OverflowError) as error:
        raise InputError(f"cannot serve on port {port}: {error}. Give another one, or 0 for any free one") from None
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="paretograd explore", daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._connections: set[socket] = set()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Stop listening, and end the connections that browsers keep."""
        super().server_close()
        for connection in list(self._connections):
            with suppress(OSError):  # closed by the other side
                connection.shutdown(SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """One connection of a browser."""

    protocol_version = "HTTP/1.1"
    server_version = "paretograd"
    sys_version = ""
    timeout = 60
    disable_nagle_algorithm = True  # header and body are two writes; the second would wait for the first

    def do_GET(self) -> None:
        if not self._is_for_us():
            return
        if self.path.partition("?")[0] != "/":
            self._refuse(HTTPStatus.NOT_FOUND, "there is only the page, at /")
            return
        found = page()
        self._send(HTTPStatus.OK, "text/html; charset=utf-8", found.encode(), {"Content-Security-Policy": policy()})

    def do_POST(self) -> None:
        if not self._is_for_us():
            return
        if self.path != "/answer":
            self._refuse(HTTPStatus.NOT_FOUND, "numbers are at /answer")
        elif self.headers.get_content_type() != _JSON:
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send {_JSON}")
        else:
            body = self._body()
            if body is not None:
                self._answer(body)

    def _answer(self, body: bytes) -> None:
        try:
            found = answer(_parsed(body))
        except ParetogradError as error:
            self._refuse(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
        else:
            self._send(HTTPStatus.OK, _JSON, _dumped(found))

    def _is_for_us(self) -> bool:
        """Refuse a request by a foreign name, or from a page of another site."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        ours = _name(f"//{host}") in _OURS and origin in (None, f"http://{host}")
        if not ours:
            self._refuse(HTTPStatus.FORBIDDEN, f"only pages of {' or '.join(sorted(_OURS))} are answered")
        return ours

    def _body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "a request says how long it is, by Content-Length")
        elif len(length) > 9 or int(length) > LARGEST:
            self._refuse(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request has at most {LARGEST} bytes; got {length[:20]}"
            )
        else:
            return self.rfile.read(int(length))
        return None

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        """Say why there is no answer. Close the connection: its body may not have been read."""
        self.close_connection = True
        self._send(status, _JSON, _dumped({"error": reason}), {"Connection": "close"})

    def _send(self, status: HTTPStatus, kind: str, body: bytes, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        for name, value in (headers | (more or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Print nothing: a drag makes sixty requests in a second."""


def _parsed(body: bytes) -> object:
    def refuse(name: str) -> object:
        raise InputError(f"{name} is no number that gradients can have; every number must be finite")

    try:
        return json.loads(body, parse_constant=refuse)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"the request is not JSON: {error}") from None


def _dumped(data: object) -> bytes:
    return json.dumps(data, allow_nan=False, ensure_ascii=False).encode()


def _name(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None

"""Serving the pages on this machine, for where a browser cannot open them from disk."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fpa.errors import FpaError, UsageError


class _Pages(SimpleHTTPRequestHandler):
    """Files of one folder, always fresh: a rebuilt explorer shows at the next load."""

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def list_directory(self, path: Any) -> None:
        """Nothing but the pages is listed."""
        self.send_error(404)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not worth a line each."""


def make_server(site: Path, port: int = 0, host: str = "127.0.0.1") -> ThreadingHTTPServer:
    """A server of the pages in ``site``, not yet running; port 0 takes a free one.

    Raises:
        UsageError: there are no pages there.
        FpaError: the port is taken.
    """
    if not (site / "index.html").is_file():
        raise UsageError(f"{site} holds no pages; build them with fpa explore RUN --out {site}")
    try:
        return ThreadingHTTPServer((host, port), partial(_Pages, directory=str(site)))
    except OSError as error:
        raise FpaError(
            f"port {port} cannot be used ({error.strerror or error}); choose another with --port"
        ) from error


def serve(site: Path, port: int = 8000, host: str = "127.0.0.1") -> None:
    """Serve the pages in ``site`` until interrupted; to this machine only, unless another host is named.

    Raises:
        UsageError, FpaError: as ``make_server``.
    """
    with make_server(Path(site), port, host) as server:
        print(f"http://{host}:{server.server_address[1]}/  (Ctrl-C to stop)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return

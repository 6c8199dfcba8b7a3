"""Asking HTTP servers that may be slow, busy, or gone: load spread, limits, retries with growing pauses."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fpa.engines.base import EngineError, EngineStopped
from fpa.engines.dialects import BadAnswer
from fpa.errors import UsageError

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 30.0  # seconds between tries: doubled each time
BUSY = (408, 409, 425, 429)  # statuses that ask to come back later


class _Later(Exception):
    """A try that failed in a way that another one may not."""

    def __init__(self, why: str, pause: float | None = None, *, answered: bool = True) -> None:
        super().__init__(why)
        self.pause = pause  # what the server asked for
        self.answered = answered  # whether the server is there at all


@dataclass(eq=False)
class Server:
    """One base URL and how it is doing."""

    url: str
    in_flight: int = 0
    failures: int = 0  # in a row
    not_before: float = 0.0  # monotonic time of the next try


class Servers:
    """Some servers of one model.

    Args:
        urls: their base URLs, without ``/v1``.
        in_flight: most requests that one of them has at a time.
        timeout: seconds to wait for an answer.
        retries: tries after the first, over all servers together.
        key: sent as a bearer token, where there is one.
    """

    def __init__(
        self, urls: Sequence[str], *, in_flight: int, timeout: float, retries: int, key: str
    ) -> None:
        self.all = [Server(url) for url in urls]
        self._limit = in_flight
        self._timeout = timeout
        self._retries = retries
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._changed = threading.Condition()
        self._connections = threading.local()
        self._closed = False

    def ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None,
        read: Callable[[Any], Any],
        only: Server | None = None,
    ) -> Any:
        """The answer, as ``read`` makes it; asked of the least busy server (or of ``only``).

        An answer counts only when it is whole and ``read`` takes it, so nothing is taken twice.

        Raises:
            EngineError: a server refuses the request, or no try gave an answer that could be read.
            EngineStopped: no server answers, or they want another key.
        """
        payload = None if body is None else json.dumps(body)
        whys: list[str] = []
        answered = False
        for _ in range(self._retries + 1):
            server = self._take(only)
            try:
                result = read(self._exchange(server, method, path, payload))
            except (_Later, BadAnswer) as failure:
                whys.append(f"{server.url}: {failure}")
                answered |= not isinstance(failure, _Later) or failure.answered
                self._failed(server, failure.pause if isinstance(failure, _Later) else None)
            except BaseException:
                self._give_back(server)
                raise
            else:
                self._give_back(server)
                return result
        last = whys[-1]
        if answered:
            raise EngineError(f"no usable answer in {len(whys)} tries; the last: {last}")
        raise EngineStopped(f"no server answers ({last}): start it, or correct --url, and run this again")

    def _take(self, only: Server | None) -> Server:
        """The least busy server that is not being left alone; waits for one."""
        with self._changed:
            while True:
                if self._closed:
                    raise EngineStopped("the engine was closed")
                now = time.monotonic()
                free = [
                    s
                    for s in (self.all if only is None else [only])
                    if s.in_flight < self._limit and s.not_before <= now
                ]
                if free:
                    server = min(free, key=lambda s: (s.in_flight, s.failures))
                    server.in_flight += 1
                    return server
                waits = [s.not_before - now for s in self.all if s.not_before > now]
                self._changed.wait(min(waits, default=None) if waits else None)

    def _give_back(self, server: Server) -> None:
        with self._changed:
            server.in_flight -= 1
            server.failures = 0
            self._changed.notify_all()

    def _failed(self, server: Server, asked_for: float | None) -> None:
        """Leave a server alone for a while: as long as it asks for, or twice as long as the last time."""
        with self._changed:
            server.in_flight -= 1
            now = time.monotonic()
            if now >= server.not_before:  # requests that fail together are one failure
                pause = FIRST_PAUSE * 2 ** min(server.failures, 10) * random.uniform(0.5, 1.0)
                server.failures += 1
                server.not_before = now + min(pause if asked_for is None else asked_for, LONGEST_PAUSE)
            self._changed.notify_all()

    def _exchange(self, server: Server, method: str, path: str, payload: str | None) -> Any:
        """One try. What fails on a connection that had been left open is sent once more on a fresh one."""
        kept: dict[str, http.client.HTTPConnection] = self._connections.__dict__.setdefault("kept", {})
        while True:
            connection = kept.pop(server.url, None)
            reused = connection is not None
            try:
                if connection is None:
                    connection = self._connect(server.url)
                connection.request(method, urlsplit(server.url).path + path, payload, self._headers)
                response = connection.getresponse()
                content = response.read()
            except TimeoutError as error:
                if connection is not None:
                    connection.close()
                raise _Later(f"no answer within {self._timeout:.0f} s") from error
            except (http.client.HTTPException, OSError) as error:
                if connection is not None:
                    connection.close()
                if reused:
                    continue
                cut = isinstance(error, http.client.IncompleteRead | http.client.BadStatusLine)
                why = "the answer was cut off" if cut else str(error) or type(error).__name__
                raise _Later(why, answered=cut) from error
            kept[server.url] = connection
            break
        return self._content(response, content)

    def _connect(self, url: str) -> http.client.HTTPConnection:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=self._timeout)

    def _content(self, response: http.client.HTTPResponse, content: bytes) -> Any:
        status = response.status
        if status in (401, 403):
            raise EngineStopped(f"the server refuses access ({error_text(content)}): set OPENAI_API_KEY")
        if status in BUSY or status >= 500:
            asked_for = response.getheader("Retry-After", "")
            pause = float(asked_for) if asked_for.replace(".", "", 1).isdigit() else None
            raise _Later(f"status {status} ({error_text(content)})", pause)
        if status != 200:
            raise EngineError(f"the server refused a request: {error_text(content)}")
        try:
            return json.loads(content)
        except ValueError as error:
            raise _Later("the answer is no JSON") from error

    def close(self) -> None:
        """Let waiting threads go."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def base_urls(text: str) -> list[str]:
    """The base URLs in a list separated by commas, without ``/v1``.

    Raises:
        UsageError: there is none, or one that no server can have.
    """
    urls = [u.strip().rstrip("/").removesuffix("/v1") for u in text.split(",") if u.strip()]
    for url in urls:
        try:
            parts = urlsplit(url)
            host = (parts.hostname or "").encode("idna")
            wrong = parts.scheme not in ("http", "https") or not host or parts.port == 0
        except ValueError:  # no such port, brackets that do not match, a host that no name server can know
            wrong = True
        # Requests go to the path alone: what stands behind it would be lost.
        if wrong or parts.query or parts.fragment or not parts.path.isascii() or any(map(str.isspace, url)):
            raise UsageError(f"--url takes base URLs such as http://127.0.0.1:8000/v1, got {url!r}")
    if not urls:
        raise UsageError(f"--url takes base URLs such as http://127.0.0.1:8000/v1, got {text!r}")
    return urls


def error_text(content: bytes) -> str:
    """What a server says is wrong, in one line."""
    try:
        said = json.loads(content)
        said = said.get("error", said.get("detail", said)) if isinstance(said, dict) else said
        said = said.get("message", said) if isinstance(said, dict) else said
    except ValueError:
        said = content[:200].decode(errors="replace")
    return " ".join(str(said).split())[:300]

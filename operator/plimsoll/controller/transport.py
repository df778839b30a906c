"""One HTTP request to the API server, and what its answer means.

This is the one place where HTTP codes become outcomes (`outcome_of`), and the one place that every
request of ours passes, so it is where they are counted. The watches have a client of their own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import aiohttp

from plimsoll.controller.cluster import Conflict, Object, Refused, Retry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REQUEST_SECONDS = 30.0

# Codes that say nothing about the request itself: the same one may succeed later. 401 is among
# them because the projected token rotates and the file is read again.
_LATER = frozenset({401, 408, 425, 429})
NOT_FOUND = 404
CONFLICT = 409
GONE = 410
UNPROCESSABLE = 422
ERROR = 400
_SERVER_ERROR = 500

_JSON = "application/json"

Meter = Callable[[str, int | None, float], None]
"""Takes a request's HTTP method, the code of its answer (None: there was none), and its seconds."""


def unmetered(_method: str, _code: int | None, _seconds: float) -> None:
    """A meter for who does not count."""


def outcome_of(status: int, body: Mapping[str, Any], retry_after: str | None = None) -> Exception:
    """The outcome that an error response means.

    Args:
        status: the HTTP code, 400 or more.
        body: the API's Status object, {} where the body was none.
        retry_after: the header, whole seconds.
    """
    reason = str(body.get("reason") or "")
    message = str(body.get("message") or f"HTTP {status} without a message")
    if status == CONFLICT:
        return Conflict(f"{status} {reason}: {message}")
    if status in _LATER or status >= _SERVER_ERROR:
        asked = retry_after or str((body.get("details") or {}).get("retryAfterSeconds") or "")
        after = float(asked) if asked.isdecimal() else 0.0
        return Retry(f"{status} {reason}: {message}", after)
    return Refused(status, reason or "Unknown", message)


class Transport:
    """Sends requests and translates answers.

    Args:
        client: the client library's, of which only the transport is used.
        meter: is told of every request.
        timeout: seconds for a request that names no other.
        clock: monotonic seconds, for the meter.
    """

    def __init__(
        self,
        client: Any,  # noqa: ANN401  # the client library ships no type information
        meter: Meter,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._meter = meter
        self._clock = clock
        self.timeout = timeout

    async def must(self, method: str, path: str, **kwargs: Any) -> Object:  # noqa: ANN401  # passed on to call
        """As `call`, where nothing to return is no answer.

        Raises:
            Retry: the answer was empty.
        """
        body = await self.call(method, path, **kwargs)
        if body is None:
            raise Retry(f"{method} {path}: the answer was empty")
        return body

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: Object | Sequence[Object] | None = None,
        content_type: str = _JSON,
        missing_ok: bool = False,
    ) -> Object | None:
        """Send one request; None for a 404 where ``missing_ok``.

        Raises:
            Retry: no answer came, or one that says nothing.
            Refused: the API server said no.
        """
        status, raw, headers = await self.send(
            method, path, query=query, body=body, content_type=content_type
        )
        parsed = parse(raw)
        if status < ERROR:
            if parsed is None:
                raise Retry(f"{method} {path}: HTTP {status} with a broken body")
            return parsed
        if status == NOT_FOUND and missing_ok:
            return None
        raise outcome_of(status, parsed or {}, headers.get("Retry-After"))

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: Object | Sequence[Object] | None = None,
        content_type: str = _JSON,
        timeout: float | None = None,  # noqa: ASYNC109  # handed on to the client
    ) -> tuple[int, bytes, Mapping[str, str]]:
        """Send one request; its code, body and headers.

        Raises:
            Retry: no answer came.
        """
        began = self._clock()
        code: int | None = None
        try:
            response = await self._client.call_api(
                method,
                self._url(path, query),
                await self._headers(content_type),
                body,
                _request_timeout=timeout or self.timeout,
            )
            raw = await response.read()
            code = response.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Retry(f"{method} {path}: {type(error).__name__}: {error}") from error
        finally:
            # Also where the request was cancelled: it was sent, and the API server had it.
            self._meter(method, code, self._clock() - began)
        return response.status, raw, response.headers

    def _url(self, path: str, query: Sequence[tuple[str, str]]) -> str:
        asked = f"?{urlencode(query, quote_via=quote)}" if query else ""
        return f"{self._client.configuration.host}{path}{asked}"

    async def _headers(self, content_type: str) -> dict[str, str]:
        """What each request carries. The library's own way copies the body piece by piece as well."""
        headers = {
            "Accept": _JSON,
            "Content-Type": content_type,
            "User-Agent": self._client.user_agent,
        }
        for setting in (await self._client.configuration.auth_settings()).values():
            headers[setting["key"]] = setting["value"]
        return headers


def parse(raw: bytes) -> Object | None:
    """The JSON object of a body; None where it is none."""
    try:
        parsed = json.loads(raw)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None

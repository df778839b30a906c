"""Asking a server pod over HTTP. The pod is somebody else's program: everything about it is bounded.

No redirects, no proxy, no decompression (a small answer must not become a large one), and a session for
each question, so that no cookie and no connection outlives it.
"""

from __future__ import annotations

from typing import Final

import aiohttp

from plimsoll import __version__

FETCH_SECONDS: Final = 3.0
MAX_BODY: Final = 1 << 20

_OK: Final = 200
_HEADERS: Final = {
    "User-Agent": f"plimsoll-operator/{__version__}",
    "Accept-Encoding": "identity",
}


class Unreachable(Exception):  # noqa: N818  # an outcome, as those of `cluster`
    """Nobody answers at the address: another path on it need not be tried."""


async def fetch(url: str, *, seconds: float = FETCH_SECONDS, most: int = MAX_BODY) -> bytes | None:
    """The body of a GET, or None where the answer is not a 200 or is too long.

    Args:
        url: what to get.
        seconds: for everything together.
        most: bytes of the body.

    Raises:
        Unreachable: no connection, no answer in time, or none that is HTTP.
    """
    try:
        async with (
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=seconds),
                auto_decompress=False,
                headers=_HEADERS,
            ) as session,
            session.get(url, allow_redirects=False) as response,
        ):
            if response.status != _OK or (response.content_length or 0) > most:
                return None
            body = bytearray()
            async for chunk in response.content.iter_chunked(64 << 10):
                body += chunk
                if len(body) > most:
                    return None
            return bytes(body)
    except TimeoutError as error:
        raise Unreachable(f"nothing in {seconds:g} s") from error
    except (aiohttp.ClientError, OSError) as error:  # their texts repeat the address
        raise Unreachable(type(error).__name__) from error

"""One bounded GET, against real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from plimsoll.controller.fetch import MAX_BODY, Unreachable, fetch

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def raw_server(answer: Answer) -> AsyncIterator[str]:
    open_ones: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await answer(reader, writer)
        finally:
            writer.close()
            await writer.wait_closed()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones.add(asyncio.create_task(talk(reader, writer)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"
        for task in open_ones:
            task.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)


def says(data: bytes) -> Answer:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return answer


async def test_a_body_and_what_is_asked_for() -> None:
    seen: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append({k.lower(): v for k, v in request.headers.items()})
        response = web.Response(body=b"tokens 7")
        response.set_cookie("a", "b")
        return response

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        assert [await fetch(f"{url}/metrics") for _ in range(2)] == [b"tokens 7"] * 2
        assert await fetch(f"{url}/nothing") is None
    finally:
        await runner.cleanup()
    for headers in seen:
        assert headers["user-agent"].startswith("plimsoll-operator/")
        assert headers["accept-encoding"] == "identity"
        assert "cookie" not in headers
        assert "authorization" not in headers


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY + 1),
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"x" * (MAX_BODY + 1),  # no length given
    ],
)
async def test_what_is_no_body(reply: bytes) -> None:
    async with raw_server(says(reply)) as url:
        assert await fetch(url) is None


async def test_a_body_of_the_most_bytes_is_taken() -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % MAX_BODY + b"x" * MAX_BODY
    async with raw_server(says(reply)) as url:
        assert await fetch(url) == b"x" * MAX_BODY


async def test_a_redirect_is_not_followed() -> None:
    asked = 0

    async def count(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")

    async with raw_server(count) as elsewhere:
        reply = f"HTTP/1.1 302 Found\r\nLocation: {elsewhere}\r\nContent-Length: 0\r\n\r\n"
        async with raw_server(says(reply.encode())) as url:
            assert await fetch(url) is None
    assert asked == 0


async def test_what_is_compressed_stays_so() -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"
    async with raw_server(says(reply)) as url:
        assert await fetch(url) == b"abc"


async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An answer that never ends and never pauses for long."""
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.01)


async def silence(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


@pytest.mark.parametrize("answer", [drip, silence])
async def test_who_takes_too_long_is_unreachable(answer: Answer) -> None:
    async with raw_server(answer) as url:
        with pytest.raises(Unreachable, match=r"nothing in 0\.1 s"):
            await fetch(url, seconds=0.1)


@pytest.mark.parametrize(
    "reply", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\n" + b"a: " + b"b" * 99_999 + b"\r\n\r\n"]
)
async def test_what_is_no_http_is_unreachable(reply: bytes) -> None:
    async with raw_server(says(reply)) as url:
        with pytest.raises(Unreachable):
            await fetch(url)


async def test_nobody_there() -> None:
    async with raw_server(says(b"")) as url:
        pass
    with pytest.raises(Unreachable):
        await fetch(url)
    with pytest.raises(Unreachable):
        await fetch("http://[not an address]/")

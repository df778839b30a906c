"""What is logged at which level; a line for each event of each object would drown everything."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from plimsoll.controller.logs import configure

KOPF = logging.getLogger("kopf.objects")
LOGGERS = (
    "",
    "plimsoll",
    "kopf.objects",
    "kopf._core.reactor.running",
    "aiohttp.access",
    "asyncio",
)


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, levels = root.handlers[:], {n: logging.getLogger(n).level for n in LOGGERS}
    yield
    root.handlers[:] = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.mark.parametrize(
    ("level", "event", "kopf_debug"),
    [(logging.DEBUG, True, False), (logging.INFO, False, False), (logging.WARNING, False, False)],
)
def test_events_are_told_at_debug_only(level: int, event: bool, kopf_debug: bool) -> None:  # noqa: FBT001 -- table columns
    configure(level, "text")
    assert KOPF.isEnabledFor(logging.INFO) is event
    assert KOPF.isEnabledFor(logging.DEBUG) is kopf_debug  # whole objects, with their secrets
    assert KOPF.isEnabledFor(logging.WARNING)
    assert logging.getLogger("plimsoll.x").isEnabledFor(logging.DEBUG) is (level == logging.DEBUG)


def test_json_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    configure(logging.INFO, "json")
    error = ValueError("two\nlines")
    logging.getLogger("plimsoll.x").error("it %s", "broke", exc_info=error)
    line = json.loads(stream.getvalue())
    assert (line["level"], line["logger"], line["message"]) == ("ERROR", "plimsoll.x", "it broke")
    assert "two\nlines" in line["error"]
    assert stream.getvalue().count("\n") == 1

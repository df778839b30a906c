"""Logging: one JSON object a line, or text for people."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_QUIET = ("kopf._core.reactor.running", "aiohttp.access", "asyncio")
_PER_EVENT = "kopf.objects"  # "Handler 'pods' succeeded." for each event of each object


class JsonFormatter(logging.Formatter):
    """``time``, ``level``, ``logger``, ``message`` and, on errors, ``error``."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(level: int, style: str) -> None:
    """Set up the root logger on standard error.

    kopf logs whole objects at DEBUG, and pod templates may hold secrets in plain environment
    values, so other people's loggers never go below INFO.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else logging.Formatter(_TEXT))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.INFO))
    logging.getLogger("plimsoll").setLevel(level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.ERROR)
    chatty = logging.INFO if level <= logging.DEBUG else logging.WARNING
    logging.getLogger(_PER_EVENT).setLevel(chatty)

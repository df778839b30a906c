"""Recomputes ``maxTotalTokenNum`` from a sizer's termination message, by hand as it were.

An independent check: it imports nothing from the product, knows only the documented form of the message,
and uses the documented formula::

    kv               = freeAfterInit - weights - sum(reserve) - safety
    maxTotalTokenNum = floor((kv - fixedPools) / kvBytesPerRank / granule) * granule

llama.cpp serves no token beyond its slots, so for it the result is at most maxSequences * contextLength.
A bound that the user set (sizing.maxTotalTokenNum) is not in the message and is given beside it.

    kubectl get pod ... -o jsonpath='{...terminated.message}' | python tests/recompute.py --engine LlamaCpp

Prints the number. Exits 1, saying why on standard error, where the message is malformed, does not add up,
or states another number; 2 for a wrong call.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

SCHEMA = "plimsoll.dev/report.v1"
MAX_BYTES = 2048
KEYS = {
    "schema",
    "podUID",
    "requestHash",
    "modelDigest",
    "class",
    "driver",
    "devices",
    "rank",
    "budget",
    "perToken",
    "fixedPools",
    "granule",
    "maxTotalTokenNum",
    "tokenMeaning",
    "maxSequences",
    "contextLength",
    "modelFile",
    "prefillTokens",
    "confidence",
    "end",
}
BUDGET_KEYS = {
    "deviceTotal",
    "deviceFree",
    "freeAfterInit",
    "weights",
    "reserve",
    "safety",
    "kv",
}


class Wrong(Exception):  # noqa: N818 - a verdict on a message, not a fault of this program
    """The message is malformed or its numbers do not agree."""


def integer(document: dict[str, Any], key: str) -> int:
    """One whole number of the message; a bool or a float is none."""
    value = document.get(key)
    if type(value) is not int:
        raise Wrong(f"{key} is {value!r}, not an integer")
    return value


def parse(text: str) -> dict[str, Any]:
    """The message as a document, its form checked.

    Raises:
        Wrong: too long, no JSON, another schema, a missing or further key, no end marker, or a failure.
    """
    if len(text.encode()) > MAX_BYTES:
        raise Wrong(f"{len(text.encode())} bytes, more than {MAX_BYTES}")
    try:
        document = json.loads(text)
    except ValueError as error:
        raise Wrong(f"not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise Wrong(f"the schema is not {SCHEMA}")
    if document.get("end") != "plimsoll":
        raise Wrong("the end marker is missing")
    if "error" in document:
        raise Wrong(f"the sizing failed: {document['error']}")
    # Only engines that pin more than four numbers have the one, only a probe of CUDA the other.
    odd = (set(document) - {"pinned", "cuda"}) ^ KEYS
    if odd:
        raise Wrong(f"keys missing or too many: {sorted(odd)}")
    if set(document["budget"]) != BUDGET_KEYS or set(document["perToken"]) != {"kvBytesPerRank"}:
        raise Wrong("the keys of budget or perToken are not the documented ones")
    if len(document["devices"]) != document["class"]["count"]:
        raise Wrong("the number of devices is not the class's count")
    return document


def recompute(
    document: dict[str, Any], *, engine: str | None = None, bound: int | None = None
) -> int:
    """The number that the terms give.

    Args:
        document: from :func:`parse`.
        engine: ``LlamaCpp`` caps at what its slots serve.
        bound: the user's upper bound in tokens.

    Returns:
        Tokens.

    Raises:
        Wrong: kv is not what its terms leave.
    """
    budget = document["budget"]
    left = integer(budget, "freeAfterInit") - integer(budget, "weights") - integer(budget, "safety")
    for term in budget["reserve"]:
        left -= integer(budget["reserve"], term)
    if left != integer(budget, "kv"):
        raise Wrong(f"budget.kv is {budget['kv']}, its terms leave {left}")
    granule = integer(document, "granule")
    cell = integer(document["perToken"], "kvBytesPerRank")
    pool = left - integer(document, "fixedPools")
    if bound is not None:
        pool = min(pool, bound * cell)
    tokens = pool // (cell * granule) * granule
    if engine == "LlamaCpp":
        slots = integer(document, "maxSequences") * integer(document, "contextLength")
        tokens = min(tokens, slots)
    return tokens


def main(arguments: list[str] | None = None) -> int:
    """Read a message from a file or standard input; print the number."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", nargs="?", default="-", help="the message; - is standard input")
    parser.add_argument("--engine", help="spec.engine.type; LlamaCpp has a cap of its own")
    parser.add_argument("--bound", type=int, help="sizing.maxTotalTokenNum, where it was set")
    options = parser.parse_args(arguments)
    text = sys.stdin.read() if options.file == "-" else Path(options.file).read_text("utf-8")
    try:
        document = parse(text)
        tokens = recompute(document, engine=options.engine, bound=options.bound)
        stated = integer(document, "maxTotalTokenNum")
    except Wrong as wrong:
        print(f"recompute: {wrong}", file=sys.stderr)  # noqa: T201 - the reason
        return 1
    print(tokens)  # noqa: T201 - the answer
    if tokens != stated:
        print(f"recompute: the message says {stated}", file=sys.stderr)  # noqa: T201 - the reason
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

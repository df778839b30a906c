"""``plimsoll explain NAME``: where the number comes from."""

from __future__ import annotations

import json
import sys

from plimsoll.cli import levers, levers_exact
from plimsoll.cli.explain_document import document
from plimsoll.cli.explain_text import text
from plimsoll.cli.kubectl import Kubectl
from plimsoll.cli.parsing import Parser, add_cluster, add_output, command
from plimsoll.cli.style import style_of, write
from plimsoll.controller.crd import InvalidSpec, parse


def parser() -> Parser:
    """The command line."""
    found = command(
        "explain",
        "Shows a GPU's memory as the terms that its number was computed from, where each comes from, and what\n"
        "would raise the number. Reads the InferenceServer only.",
        """
explain llama-8b
explain llama-8b --model /models/Llama-3.1-8B-Instruct   # with the model's files: exact levers
explain llama-8b -o json
""",
    )
    found.add_argument("name", metavar="NAME", help="of the InferenceServer")
    found.add_argument(
        "--model", metavar="PATH", help="the model's files here: levers by the whole arithmetic"
    )
    add_output(found, "json")
    add_cluster(found)
    return found


def run(words: list[str]) -> int:
    """Ask, explain, print."""
    chosen = parser().parse_args(words)
    raw = Kubectl.of(chosen).server(chosen.name)
    capacity = (raw.get("status") or {}).get("capacity") or {}
    try:
        server = parse(raw)
    except InvalidSpec:  # condition Accepted says why
        server = None
    found = levers.levers(server, capacity) if server is not None else []
    notes: tuple[str, ...] = ()
    if chosen.model is not None and server is not None and found:
        found, notes = levers_exact.exact(found, server, capacity, chosen.model)
    still = levers.without_effect(server, capacity) if server is not None else None
    answer = document(raw, found, (*notes, *((still,) if still else ())))
    if chosen.output == "json":
        print(json.dumps(answer, indent=2))
    else:
        write(text(answer, style_of(sys.stdout)))
    return 0

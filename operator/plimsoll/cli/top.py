"""``plimsoll top``: how much of each budget is in use."""

from __future__ import annotations

import json
import sys

from plimsoll.cli import engines, top_view
from plimsoll.cli.kubectl import Kubectl
from plimsoll.cli.parsing import Parser, add_cluster, add_output, command
from plimsoll.cli.style import style_of, write


def parser() -> Parser:
    """The command line."""
    found = command(
        "top",
        "Shows the tokens in use of each server's budget, by the engines' own metrics, which are asked through\n"
        "the API server (right: get pods/proxy). A dash: the engine does not tell; SGLang and TensorRT-LLM only\n"
        "do so when started with metrics. Column MEANS: Held, tokens of running requests; Reserved, what the\n"
        "running batch may grow to (TGI); Slots, whole slots of running requests (llama.cpp).",
        """
top
top llama-8b --pods
top -A -o json
""",
    )
    found.add_argument("name", nargs="?", metavar="NAME", help="of the InferenceServer")
    found.add_argument("--pods", action="store_true", help="a line for each pod")
    add_output(found, "json")
    add_cluster(found, everywhere=True)
    return found


def run(words: list[str]) -> int:
    """Ask all engines, print."""
    chosen = parser().parse_args(words)
    kubectl = Kubectl.of(chosen)
    servers = [kubectl.server(chosen.name)] if chosen.name else kubectl.servers()
    found = engines.targets(kubectl, servers) if servers else []
    answer = top_view.document(servers, found, engines.usages(kubectl, found))
    if chosen.output == "json":
        print(json.dumps(answer, indent=2))
    elif not servers:
        print("There are no InferenceServers here; -A looks in all namespaces.")
    else:
        write(top_view.text(answer, style_of(sys.stdout), pods=chosen.pods))
    return 0

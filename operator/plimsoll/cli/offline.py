"""``plimsoll render -f FILE``: what the operator would create, without a cluster."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

from plimsoll import __version__
from plimsoll.cli import offline_plan
from plimsoll.cli.manifest import read_servers
from plimsoll.cli.options import add_device
from plimsoll.cli.parsing import Parser, command
from plimsoll.cli.render import error_line
from plimsoll.cli.style import printable
from plimsoll.cli.yaml_text import to_yaml
from plimsoll.controller.objects import BuildContext
from plimsoll.core.errors import BadArgument, PlimsollError

if TYPE_CHECKING:
    import argparse

    from plimsoll.cli.offline_plan import Rendered

SCHEMA: Final = "plimsoll.dev/render.v1"
SIZER_IMAGE: Final = f"ghcr.io/plimsoll-dev/sizer:{__version__}"


def parser() -> Parser:
    """The command line."""
    found = command(
        "render",
        "Prints the sizing pod, the Deployment and the Service that the operator would create, with the operator's\n"
        "own code; a resource that it would not accept is refused in the words of condition Accepted. Without a\n"
        "number, <measured> stands in the arguments where a GPU's will. The API server is not asked.",
        """
render -f server.yaml
render -f server.yaml --gpu H100-80GB --model /models/Llama-3.1-8B-Instruct
render -f server.yaml --tokens 200000 -o json
""",
    )
    found.add_argument(
        "-f",
        "--filename",
        required=True,
        metavar="FILE",
        help="a manifest, YAML or JSON; - is stdin",
    )
    found.add_argument("-n", "--namespace", metavar="NAME", help="where the file names none")
    found.add_argument(
        "--tokens", type=_count, metavar="N", help="the number, as if sizing.mode were Fixed"
    )
    found.add_argument(
        "--model", metavar="PATH", help="the model's files: computes for the GPU flags"
    )
    found.add_argument(
        "--sizer-image", default=SIZER_IMAGE, metavar="IMAGE", help=f"default: {SIZER_IMAGE}"
    )
    found.add_argument(
        "--kubelet", type=_version, default=(1, 36), metavar="1.NN",
        help="oldest kubelet that may get the pods (InPod: how values reach the engine); default: 1.36",
    )  # fmt: skip
    found.add_argument(
        "-o", "--output", choices=("yaml", "json"), default="yaml", help="default: yaml"
    )
    add_device(found.add_argument_group("GPU (with --model; as for fit)"))
    return found


def run(words: list[str]) -> int:
    """Read, plan, print."""
    chosen = parser().parse_args(words)
    _check(chosen)
    servers, others = read_servers(chosen.filename)
    context = BuildContext(chosen.sizer_image, "IfNotPresent")
    done, code = [], 0
    for raw in servers:
        try:
            done.append(offline_plan.rendered(raw, chosen, context))
        except PlimsollError as error:
            name = str((raw.get("metadata") or {}).get("name"))
            done.append(offline_plan.refused(name, error))
            print(error_line(error), file=sys.stderr)
            code = max(code, error.exit_code)
    if others:
        print(
            f"{others} other objects in {printable(chosen.filename)} are left out", file=sys.stderr
        )
    if chosen.output == "json":
        print(json.dumps(document(done), indent=2))
    else:
        sys.stdout.write("".join(_yaml(one) for one in done))
    return code


def document(done: list[Rendered]) -> dict[str, Any]:
    """The document ``plimsoll.dev/render.v1``."""
    return {
        "schema": SCHEMA,
        "servers": [
            {
                "name": one.name,
                "mode": one.mode,
                "why": one.why,
                "notes": list(one.notes),
                "objects": list(one.objects),
                "error": one.error.to_dict() if one.error is not None else None,
            }
            for one in done
        ],
    }


def _yaml(one: Rendered) -> str:
    """Documents, each with a line that says what it is."""
    if one.error is not None:
        return f"---\n# {printable(one.name)}: {printable(one.error.message)}\n"
    head = "".join(f"# {printable(note)}\n" for note in one.notes)
    documents = [f"---\n{to_yaml(obj)}" for obj in one.objects]
    return f"{head}{''.join(documents)}"


def _check(chosen: argparse.Namespace) -> None:
    gpu = any(
        value is not None
        for value in (
            chosen.gpu,
            chosen.gpu_name,
            chosen.gpu_total,
            chosen.gpu_free,
            chosen.nvml_total,
        )
    )
    if chosen.tokens is not None and (gpu or chosen.model):
        raise BadArgument("give --tokens, or --gpu and --model, not both", field="--tokens")
    if gpu != (chosen.model is not None):
        raise BadArgument(
            "a number is computed from --gpu (or --gpu-total) and --model together",
            field="--model" if gpu else "--gpu",
        )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 10**9):
        raise BadArgument(f"--tokens {text[:16]!r} is not a whole number above 0", field="--tokens")
    return int(text)


def _version(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    if not (major == "1" and minor.isascii() and minor.isdigit()):
        raise BadArgument(f"--kubelet {text[:16]!r} is no version such as 1.36", field="--kubelet")
    return 1, int(minor)

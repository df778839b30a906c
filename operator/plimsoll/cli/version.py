"""``plimsoll version``: this program, and what the cluster runs."""

from __future__ import annotations

import json
from typing import Any, Final

from plimsoll import __version__
from plimsoll.cli.kubectl import Kubectl
from plimsoll.cli.parsing import Parser, add_cluster, add_output, command
from plimsoll.cli.style import printable, write
from plimsoll.core.errors import PlimsollError

SCHEMA: Final = "plimsoll.dev/version.v1"
CRD: Final = "customresourcedefinitions.apiextensions.k8s.io"
_SELECTOR: Final = "app.kubernetes.io/part-of=plimsoll"


def parser() -> Parser:
    """The command line."""
    found = command(
        "version",
        "Prints the version of this program, and of the operator and the CRD where a cluster can be asked.",
        "version --client",
    )
    found.add_argument("--client", action="store_true", help="this program only")
    add_output(found, "json")
    add_cluster(found)
    return found


def run(words: list[str]) -> int:
    """Print versions; a cluster that cannot be asked is said and is no failure."""
    chosen = parser().parse_args(words)
    document: dict[str, Any] = {"schema": SCHEMA, "client": __version__}
    if not chosen.client:
        document |= _cluster(Kubectl.of(chosen))
    if chosen.output == "json":
        print(json.dumps(document, indent=2))
        return 0
    lines = [f"plimsoll {document['client']}"]
    lines += [f"operator {printable(image)}" for image in document.get("operators", ())]
    if "crd" in document:
        lines.append(f"InferenceServer {', '.join(document['crd']) or 'not installed'}")
    if "error" in document:
        lines.append(f"cluster: {printable(document['error'])}")
    write(lines)
    return 0


def _cluster(kubectl: Kubectl) -> dict[str, Any]:
    try:
        found: dict[str, Any] = {}
        everywhere = Kubectl(kubectl.flags, everywhere=True, seconds=kubectl.seconds)
        crds = Kubectl(kubectl.flags, seconds=kubectl.seconds).items(
            CRD, "--field-selector=metadata.name=inferenceservers.plimsoll.dev"
        )
        found["crd"] = [v["name"] for crd in crds for v in crd["spec"]["versions"] if v["served"]]
        operators = everywhere.items("deployments.apps", f"--selector={_SELECTOR}")
        images = {_image(operator) for operator in operators}
        return {**found, "operators": sorted(image for image in images if image)}
    except PlimsollError as error:
        return {"error": error.message}


def _image(deployment: dict[str, Any]) -> str | None:
    containers = deployment["spec"]["template"]["spec"]["containers"]
    return str(containers[0]["image"]) if containers else None

"""kwok beside a control plane without nodes: it plays the kubelets of nodes that do not exist.

What it plays is in ``stages/``: nodes are ready at once, the sizer of a pod reports what it would find on the GPU of
the pod's node (see `gpus`), servers take as long as their annotations say. Nothing is pulled, mounted or computed.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from .beside import Beside
from .cluster import Cluster
from .gotools import go_tool
from .gpus import GPUS, Gpu, report

STAGES = Path(__file__).parent / "stages"
# Not the pods' range of the kit's own nodes; nothing answers there.
CIDR = "10.100.0.0/16"
_ADDRESS = "127.0.0.1:10247"


def stages(gpus: Sequence[Gpu] = GPUS) -> str:
    """Return all stages as one file of several documents, the sizer's report filled in."""
    texts = [path.read_text() for path in sorted(STAGES.glob("*.yaml"))]
    return "\n---\n".join(texts).replace("REPORT", _report(gpus))


def _report(gpus: Sequence[Gpu]) -> str:
    """Return the template that sets ``$message``: the report that belongs to the pod's node, by the node's name."""
    found = [
        (
            '{{ $hash := "" }}{{ $count := "1" }}{{ range $sizer.env }}'
            '{{ if eq .name "PLIMSOLL_REQUEST_HASH" }}{{ $hash = .value }}{{ end }}'
            '{{ if eq .name "PLIMSOLL_DEVICE_COUNT" }}{{ $count = .value }}{{ end }}{{ end }}'
        )
    ]
    for gpu in gpus:
        text = report(gpu, "@UID@", "@HASH@", "@COUNT@")
        found.append(
            f'{{{{ if contains "-{gpu.slug}-" $pod.spec.nodeName }}}}'
            f"{{{{ $message = `{text}` }}}}{{{{ end }}}}"
        )
    found.append(
        '{{ $message = $message | replace "@UID@" $pod.metadata.uid | replace "@HASH@" $hash '
        '| replace "@COUNT@" $count }}'
    )
    return "".join(found)


def start(cluster: Cluster) -> Beside:
    """Start kwok for every node of the cluster, or leave the one that runs with the same stages."""
    program = Beside(cluster, "kwok")
    config = cluster.state / "kwok-stages.yaml"
    wanted = stages()
    argv: list[str | Path] = [
        go_tool("kwok"),
        f"--kubeconfig={cluster.kubeconfig}",
        f"--config={config}",
        "--manage-all-nodes=true",
        f"--server-address={_ADDRESS}",
        f"--cidr={CIDR}",
        "--node-lease-duration-seconds=40",
    ]
    mark = cluster.state / "kwok.mark"
    key = hashlib.sha256(json.dumps([*map(str, argv), wanted]).encode()).hexdigest()
    if program.running() and mark.exists() and mark.read_text() == key:
        return program
    config.write_text(wanted)
    program.start(argv, {})
    mark.write_text(key)
    return program

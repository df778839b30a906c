"""Node tables that more than one caller uses."""

from .node import Node

# Small on purpose: on a machine without a GPU the engine's KV cache is real host memory. The names are invented.
DEMO_NODES = (
    Node("node-a", gpus=1, product="ACME-T900-0.9GB", memory=0.9),
    Node("node-b", gpus=1, product="ACME-T600-0.6GB", memory=0.6),
)
# Two kinds of GPU, one of them three times, so that tests can scale and move a server and run out of GPUs.
TEST_NODES = (
    Node("node-a", gpus=3, product="ACME-T900-0.9GB", memory=0.9),
    Node("node-b", gpus=1, product="ACME-T600-0.6GB", memory=0.6),
)
PRESETS: dict[str, tuple[Node, ...]] = {"none": (), "demo": DEMO_NODES, "test": TEST_NODES}

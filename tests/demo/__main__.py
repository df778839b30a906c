"""Boot the cluster, install the operator from its image, serve SmolLM2, show where its number came from."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.cluster_kit import Cluster, KitError
from tests.cluster_kit.cache import cache_root
from tests.cluster_kit.images import build_images, model_folder
from tests.cluster_kit.presets import DEMO_NODES
from tests.cluster_kit.rest import ISRV, Rest, RestError
from tests.demo import install, show

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMESPACE, NAME = "default", "smollm2"
SAMPLE = install.MANIFESTS / "samples" / "smollm2.yaml"
RENDERED = install.MANIFESTS / "samples" / "rendered" / "lightllm-llama-8b.yaml"
READY_SECONDS = 180
PROMPT = "The capital of France is"


def main() -> int:
    """Run the demo; KEEP=1 leaves the cluster up."""
    for number in (signal.SIGINT, signal.SIGTERM):  # `kill` cleans up like Ctrl-C; and a script's
        signal.signal(
            number, signal.default_int_handler
        )  # background jobs start with SIGINT ignored
    cache = cache_root()
    parser = argparse.ArgumentParser(prog="python -m tests.demo", description=__doc__)
    parser.add_argument("--name", default="demo", help="the cluster's name")
    cluster = Cluster(parser.parse_args().name, DEMO_NODES)
    keep = os.environ.get("KEEP", "") not in {"", "0"}
    try:
        boot(cluster, cache)
        with cluster.enter_network():
            run(cluster)
    except KeyboardInterrupt:
        keep = False
        show.say("interrupted")
        return 130
    except (KitError, RestError, TimeoutError) as error:
        show.say(f"failed: {error}")
        return 1
    finally:
        if not keep:
            show.step("stopping the cluster")
            cluster.down()
    print(show.AFTERWARDS_KEPT if keep else show.AFTERWARDS_GONE)
    return 0


def boot(cluster: Cluster, cache: Path) -> None:
    """Images, cluster, operator, and the volume with the model."""
    show.step("images: operator and sizer from ./Dockerfile, the demo engine from PyPI's llama.cpp")
    archives = build_images(cache, log=show.say)
    model = model_folder(cache, log=show.say)
    show.step("a real Kubernetes with two nodes and two small fake GPUs")
    cluster.up()
    for archive in archives.values():
        cluster.load_image(archive)
    show.step("the operator: kubectl apply -f manifests/install.yaml")
    install.install(cluster)
    install.provide_models(cluster, model.parent, NAMESPACE)


def run(cluster: Cluster) -> None:
    """Apply the sample, follow it to Ready, and show every number."""
    rest = Rest.from_kubectl(cluster.kubectl)
    show.step(f"the main job: kubectl apply -f {SAMPLE.relative_to(install.ROOT)}")
    began = time.monotonic()
    cluster.kubectl("apply", "-f", str(SAMPLE))
    for line in conditions(rest, began):
        show.say(line)
    show.say(f"Ready {time.monotonic() - began:.1f} s after kubectl apply")
    show.step("kubectl get isrv")
    print(cluster.kubectl("get", "isrv", "-o", "wide").stdout)
    server = rest.get(f"{ISRV}/namespaces/{NAMESPACE}/inferenceservers/{NAME}")
    deployment = rest.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{NAME}")
    show.step("the number in the Deployment's pod template")
    show.arguments(deployment)
    show.step("the budget, term by term")
    show.budget(server["status"]["capacity"])
    show.step("the engine's own number, from /props")
    proxy = f"/api/v1/namespaces/{NAMESPACE}/services/{NAME}:80/proxy"
    show.engine(rest.get(f"{proxy}/props"), server["status"]["capacity"])
    show.step("one completion")
    answer = rest.call("POST", f"{proxy}/completion", {"prompt": PROMPT, "n_predict": 24})
    print(f"    {PROMPT}\033[1m{answer['content']}\033[0m\n")
    show.step("the same for LightLLM on an H100: rendered, no GPU runs it here")
    show.say(f"{RENDERED.relative_to(install.ROOT)}:")
    show.arguments(yaml.safe_load(RENDERED.read_text()))


def conditions(rest: Rest, began: float) -> Iterator[str]:
    """Yield one line per change of a condition until Ready; raises TimeoutError."""
    seen: dict[str, tuple[str, str]] = {}
    path = f"{ISRV}/namespaces/{NAMESPACE}/inferenceservers/{NAME}"
    while time.monotonic() - began < READY_SECONDS:
        status: dict[str, Any] = (rest.get(path) or {}).get("status", {})
        current = {c["type"]: c for c in status.get("conditions", [])}
        for kind, condition in current.items():
            state = (condition["status"], condition.get("reason", ""))
            if seen.get(kind) != state:
                seen[kind] = state
                yield show.condition(time.monotonic() - began, condition)
        if current.get("Ready", {}).get("status") == "True":
            return
        time.sleep(0.2)
    raise TimeoutError(f"not Ready after {READY_SECONDS} s: {json.dumps(status, indent=1)}")


if __name__ == "__main__":
    if shutil.which("kubectl") is None:
        os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    sys.exit(main())

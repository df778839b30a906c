"""KEDA scales an InferenceServer by the sample's queries: from none to several and back, and not while paused."""

from __future__ import annotations

import shlex
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.cluster.world import wait
from tests.cluster_kit.gotools import go_tool
from tests.cluster_kit.gpus import A100
from tests.monitoring import prometheus
from tests.scale import keda
from tests.scale.replicas import (
    SCALE,
    await_replicas,
    check_no_fight,
    numbers,
    of,
    template,
    told,
)
from tests.scale.world import NAME, ROOT
from tests.scale.writes import HPA, KEDA, OPERATOR
from tests.unit.docs.commands import shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.monitoring.prometheus import Prometheus
    from tests.scale.world import Scale, Space

SAMPLE = ROOT / "manifests" / "samples" / "autoscaling" / "keda.yaml"
STAMPED = {"mode": "Stamped"}
# Two looks of KEDA and of the autoscaler.
LOOKS = 2.5


class Told(ThreadingHTTPServer):
    """What a gateway, the engines and the operator tell Prometheus; ``series`` is name and labels -> number."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Page)
        self.series: dict[str, float] = {}


class _Page(BaseHTTPRequestHandler):
    server: Told

    def do_GET(self) -> None:
        body = "".join(f"{name} {value}\n" for name, value in self.server.series.items()).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Say nothing."""


@pytest.fixture(scope="module")
def told_to_prometheus(scale: Scale) -> Iterator[Told]:
    """One scrape target, in the cluster's network."""
    del scale
    server = Told()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def source(
    scale: Scale, told_to_prometheus: Told, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """A Prometheus with the chart's rules, and KEDA, which asks it."""
    names = scale.add_nodes(A100)
    target = f"127.0.0.1:{told_to_prometheus.server_port}"
    folder: Path = tmp_path_factory.mktemp("prometheus")
    with (
        prometheus.running(
            go_tool("prometheus"), folder, target, namespace="elsewhere", pod="target"
        ) as found,
        keda.running(scale.cluster, scale.rest),
    ):
        yield found
    scale.remove_nodes(names)


def scaled_object(space: Space, source: Prometheus) -> dict[str, Any]:
    """The sample's, for the test's server and Prometheus, with its minutes made seconds."""
    text = SAMPLE.read_text().replace("qwen3-8b-scaled", NAME).replace("1800", "1")
    text = text.replace('namespace="default"', f'namespace="{space.namespace}"')
    found: dict[str, Any] = yaml.safe_load(text)
    found["spec"]["pollingInterval"] = 1
    behavior = found["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    for way in behavior.values():
        way["policies"][0] |= {"value": 8, "periodSeconds": 1}
        way["stabilizationWindowSeconds"] = 0
    for trigger in found["spec"]["triggers"]:
        trigger["metadata"]["serverAddress"] = source.url
    return found


def documented() -> tuple[str, str]:
    """The commands of the page that pause a ScaledObject and end that."""
    found = [line for _, line in shown("kubectl") if "annotate scaledobject" in line]
    (pause,) = (line for line in found if line.endswith("paused-replicas=2"))
    (go_on,) = (line for line in found if line.endswith("paused-replicas-"))
    return pause, go_on


def kubectl(space: Space, line: str) -> None:
    """Run a command of the page on the test's ScaledObject."""
    words = shlex.split(line.replace("qwen3-8b-scaled", NAME))[1:]
    space.scale.cluster.kubectl("-n", space.namespace, *words)


def path_of(space: Space) -> str:
    """Path of the test's ScaledObject."""
    return f"/apis/keda.sh/v1alpha1/namespaces/{space.namespace}/scaledobjects/{NAME}"


@pytest.mark.usefixtures("source")
def test_the_sample_is_taken(space: Space) -> None:
    strict = (
        "create",
        "--dry-run=server",
        "--validate=strict",
        "-n",
        space.namespace,
        "-f",
        SAMPLE,
    )
    done = space.scale.cluster.kubectl(*strict)
    assert "created" in done.stdout
    assert "Warning" not in done.stderr


@pytest.fixture
def released(space: Space, source: Prometheus) -> Iterator[None]:
    """The ScaledObject goes while KEDA is there to end it: nothing else takes its finalizer off."""
    del source
    yield
    space.rest.call("DELETE", path_of(space))
    wait(lambda: space.rest.get(path_of(space)) is None, 20, "the ScaledObject gone")


@pytest.mark.usefixtures("released")
def test_keda_wakes_scales_pauses_and_puts_to_sleep(
    space: Space, source: Prometheus, told_to_prometheus: Told
) -> None:
    labels = f'namespace="{space.namespace}",server="{NAME}"'
    waiting = f"gateway_requests_waiting{{{labels}}}"
    series = told_to_prometheus.series
    series[waiting] = 0
    space.apply(sizing=STAMPED)
    capacity = space.wait_ready()["status"]["capacity"]
    stamped = template(space)
    space.rest.apply(path_of(space), scaled_object(space, source))
    await_replicas(space, 0)

    series[waiting] = 9  # at four a server, three
    await_replicas(space, 3, 60)  # the autoscaler asks only every half minute which kinds there are

    # Nobody waits, but the caches are full to 0.9 and 0.3: at 0.7 a server, two.
    budget = space.capacity()["maxTotalTokenNum"]
    series[f'plimsoll_server_budget_tokens{{namespace="{space.namespace}",name="{NAME}"}}'] = budget
    used = {
        f'lightllm_batch_current_max_tokens{{{labels},pod="{pod}"}}': budget * share
        for pod, share in (("one", 0.9), ("two", 0.3))
    }
    series |= used
    series[waiting] = 1
    await_replicas(space, 2)
    mean = f"plimsoll_server_token_usage_ratio{{{labels}}}"
    assert source.value(mean) == pytest.approx(0.6)

    pause, go_on = documented()
    kubectl(space, pause.replace("paused-replicas=2", "paused-replicas=1"))
    await_replicas(space, 1)
    series[waiting] = 12
    wait(lambda: source.value(waiting) == 12, 10, "Prometheus has seen it")
    time.sleep(LOOKS)
    assert numbers(space) == (1, 1, 1, 1), told(space)
    assert _is_paused(space)
    kubectl(space, go_on)
    await_replicas(space, 3)

    series[waiting] = 0
    for name in used:
        del series[name]
    await_replicas(space, 0, 60)
    assert space.capacity() == capacity
    assert template(space) == stamped
    found = check_no_fight(space)
    assert len(of(found, OPERATOR, "pods", "create")) == 1  # measured once
    assert of(found, KEDA, SCALE)
    assert of(found, HPA, SCALE)
    # Made once; then one write for each number that somebody asked for.
    asked = len(of(found, KEDA, SCALE)) + len(of(found, HPA, SCALE))
    assert len(of(found, OPERATOR, "deployments")) <= 1 + asked, told(space)


def _is_paused(space: Space) -> bool:
    found = space.rest.get(path_of(space)).get("status", {}).get("conditions") or ()
    return any(c["type"] == "Paused" and c["status"] == "True" for c in found)

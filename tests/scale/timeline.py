"""Who wrote what, and when: watches for what objects became, the audit log for who wrote them.

All times are seconds since the timeline began. The watches run until the block ends; the audit log is read afterwards.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from tests.cluster_kit.rest import ISRV, RestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.scale.world import Scale

NODE_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
_SECONDS = 120
_WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_ACCOUNT = "system:serviceaccount:"
# Of all objects, those whose writes are of interest; Events and Leases are not.
_RESOURCES = frozenset(
    {"inferenceservers", "deployments", "replicasets", "pods", "services", "poddisruptionbudgets"}
)
_CLUSTER_WIDE = frozenset({"nodes", "nodeclaims"})


@dataclass(frozen=True, slots=True)
class Step:
    """Something that was seen in a watch: an object began, changed or went."""

    at: float
    kind: str
    name: str
    what: str


@dataclass(frozen=True, slots=True)
class Write:
    """One write that the API server accepted."""

    at: float
    who: str
    verb: str
    resource: str
    name: str


@dataclass
class Timeline:
    """One namespace, and the nodes of the cluster.

    Args:
        scale: the cluster.
        namespace: of the servers.
        karpenter: whether there are NodeClaims to watch.
    """

    scale: Scale
    namespace: str
    karpenter: bool = False
    began: float = field(default_factory=time.time)
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stopped = threading.Event()
        self._before: dict[tuple[str, str], dict[str, str]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        space = f"namespaces/{self.namespace}"
        watched: dict[str, Callable[[Mapping[str, Any]], dict[str, str]]] = {
            f"{ISRV}/{space}/inferenceservers": _server,
            f"/apis/apps/v1/{space}/deployments": _deployment,
            f"/api/v1/{space}/pods": _pod,
            f"/api/v1/{space}/events": _event,
            "/api/v1/nodes": _node,
        }
        if self.karpenter:
            watched[NODE_CLAIMS] = _claim
        for path, facts in watched.items():
            threading.Thread(target=self._follow, args=(path, facts), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        time.sleep(0.2)  # what was just done is on its way
        self._stopped.set()

    @property
    def now(self) -> float:
        """Seconds since it began."""
        return time.time() - self.began

    def first(self, kind: str, words: str, since: float = 0.0) -> Step:
        """The first step of a kind of object that says this. Raises AssertionError with the whole story."""
        found = self.all(kind, words, since)
        assert found, f"no {kind} said {words!r}:\n{self.story()}"
        return found[0]

    def all(self, kind: str, words: str, since: float = 0.0) -> list[Step]:
        """All such steps."""
        with self._lock:
            return [s for s in self.steps if s.kind == kind and words in s.what and s.at >= since]

    def story(self) -> str:
        """Everything, a line a step, for whoever reads a failure."""
        with self._lock:
            return "\n".join(f"{s.at:7.2f} {s.kind} {s.name}: {s.what}" for s in self.steps)

    def writes(self) -> list[Write]:
        """The accepted writes to what the namespace holds, and to nodes, in order."""
        found = []
        for event in self.scale.cluster.audit_events():
            about = event.get("objectRef") or {}
            kind = about.get("resource")
            here = about.get("namespace") == self.namespace and kind in _RESOURCES
            if not here and kind not in _CLUSTER_WIDE:
                continue
            at = _seconds(event["requestReceivedTimestamp"]) - self.began
            code = (event.get("responseStatus") or {}).get("code", 0)
            if at < 0 or event["verb"] not in _WRITES or code >= http.client.BAD_REQUEST:
                continue
            resource = f"{kind}/{about['subresource']}" if about.get("subresource") else str(kind)
            name = str(about.get("name") or "")
            found.append(Write(round(at, 3), _who(event), event["verb"], resource, name))
        return sorted(found, key=lambda write: write.at)

    def save(self, path: Path) -> None:
        """Write it down as JSON, steps and writes."""
        with self._lock:
            steps = [asdict(step) for step in self.steps]
        writes = [asdict(write) for write in self.writes()]
        rows = {"steps": steps, "writes": writes}
        lines = {key: ",\n  ".join(json.dumps(row) for row in value) for key, value in rows.items()}
        path.write_text(
            "{" + ",".join(f'\n "{key}": [\n  {text}\n ]' for key, text in lines.items()) + "\n}\n"
        )

    def _follow(self, path: str, facts: Callable[[Mapping[str, Any]], dict[str, str]]) -> None:
        while not self._stopped.is_set():
            try:
                for event in self._events(path):
                    if self._stopped.is_set():
                        return
                    self._note(event["type"], event["object"], facts)
            except (OSError, http.client.HTTPException, RestError, ValueError):
                time.sleep(
                    0.1
                )  # a watch may end at any time; the next one starts with what is there

    def _events(self, path: str) -> Iterator[dict[str, Any]]:
        for event in self.scale.rest.watch(path, seconds=_SECONDS):
            if event["type"] == "ERROR":
                return
            yield event

    def _note(
        self, kind: str, live: dict[str, Any], facts: Callable[[Mapping[str, Any]], dict[str, str]]
    ) -> None:
        at = round(self.now, 3)
        key = (str(live["kind"]), str(live["metadata"]["name"]))
        with self._lock:
            before = self._before.get(key, {})
            if kind == "DELETED":
                self._before.pop(key, None)
                if key[0] != "Event":
                    self.steps.append(Step(at, *key, "gone"))
                return
            after = facts(live)
            self._before[key] = after
            for name, value in after.items():
                if before.get(name) != value:
                    self.steps.append(Step(at, *key, f"{name} {value}".strip()))


def _server(live: Mapping[str, Any]) -> dict[str, str]:
    status = live.get("status", {})
    found = {
        c["type"]: f"{c['status']} {c['reason']}: {c['message']}"
        for c in status.get("conditions", ())
    }
    tokens = (status.get("capacity") or {}).get("maxTotalTokenNum")
    pin = (status.get("capacity") or {}).get("pinnedLabel")
    return {
        "replicas": str(live["spec"].get("replicas")),
        **found,
        **({"tokens": str(tokens)} if tokens else {}),
        **({"pin": f"{pin['key']}={pin['value']}"} if pin else {}),
    }


def _deployment(live: Mapping[str, Any]) -> dict[str, str]:
    hashed = live["spec"]["template"]["metadata"].get("annotations", {})
    return {
        "template": str(hashed.get("plimsoll.dev/inputs-hash", ""))[:8],
        "replicas": str(live["spec"]["replicas"]),
    }


def _pod(live: Mapping[str, Any]) -> dict[str, str]:
    status = live.get("status", {})
    conditions = {c["type"]: c for c in status.get("conditions", ())}
    scheduled = conditions.get("PodScheduled", {})
    found = {"created": ""}
    if scheduled.get("status") == "False":
        found["unschedulable"] = ""
    if live["spec"].get("nodeName"):
        found["node"] = live["spec"]["nodeName"]
    if conditions.get("Initialized", {}).get("status") == "True":
        found["sized"] = ""
    found |= {"phase": str(status.get("phase"))}
    if conditions.get("Ready", {}).get("status") == "True":
        found["ready"] = ""
    if "deletionTimestamp" in live["metadata"]:
        found["leaving"] = ""
    return found


def _event(live: Mapping[str, Any]) -> dict[str, str]:
    about = live.get("involvedObject", {})
    by = live.get("reportingComponent") or live.get("source", {}).get("component")
    return {f"{by} {live.get('reason')}": f"of {about.get('name')}: {live.get('message')}"}


def _node(live: Mapping[str, Any]) -> dict[str, str]:
    conditions = {c["type"]: c["status"] for c in live.get("status", {}).get("conditions", ())}
    labels = live["metadata"].get("labels", {})
    found = {"created": ""}
    if conditions.get("Ready") == "True":
        found["ready"] = ""
    if labels.get("karpenter.sh/initialized") == "true":
        found["initialized"] = ""
    if any(t["key"] == "karpenter.sh/disrupted" for t in live["spec"].get("taints", ())):
        found["disrupted"] = ""
    return found


def _claim(live: Mapping[str, Any]) -> dict[str, str]:
    conditions = live.get("status", {}).get("conditions", ())
    return {
        "created": "",
        **{c["type"]: "" for c in conditions if c["status"] == "True"},
    }


def _who(event: Mapping[str, Any]) -> str:
    """The writer in a word: a service account's own name, else the program's."""
    user = str(event["user"]["username"])
    if user.startswith(_ACCOUNT):
        return user.rsplit(":", 1)[-1]
    agent = str(event.get("userAgent") or "tests").split("/", maxsplit=1)[0]
    return {"kube-apiserver": user, "multiplex": user}.get(agent, agent)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).astimezone(UTC).timestamp()

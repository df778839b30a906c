"""What really happened in a namespace: its watch, kept from before the first act to the last.

Polling would miss the half second in which nobody served. Three watches (pods, Deployments, InferenceServers) write
down every change with its time; questions are asked afterwards. All times are seconds since the recorder began.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import threading
import time
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tests.cluster_kit.rest import ISRV, RestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.cluster_kit.rest import Rest

SERVER_LABEL = "plimsoll.dev/server"
INPUTS_HASH = "plimsoll.dev/inputs-hash"
SECONDS = 600  # longer than any test may take
CATCH_UP = 10.0
# For so long a condition may lag behind the pods: the kubelet, the API server and the operator share two cores.
LAG = 3.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pod:
    """One server pod at one moment; ``generation`` is the hash of what its template was rendered from."""

    server: str
    generation: str
    ready: bool
    leaving: bool
    restarts: int

    @property
    def serves(self) -> bool:
        """Whether requests are sent to it: a pod that was asked to go is no endpoint any more."""
        return self.ready and not self.leaving


@dataclass(frozen=True, slots=True)
class Wanted:
    """One state of a Deployment: replicas, the hash of its template's inputs, and of all of its template."""

    replicas: int
    generation: str
    template: str


@dataclass(frozen=True, slots=True)
class Said:
    """What a resource's condition Ready says; ``fresh``: about the spec as it is now.

    ``others`` are the messages of all its conditions, by type.
    """

    status: str
    reason: str
    message: str
    fresh: bool
    others: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@dataclass
class Track(Generic[T]):
    """The live values by name, over time."""

    times: list[float] = field(default_factory=list)
    states: list[dict[str, T]] = field(default_factory=list)

    def put(self, at: float, name: str, value: T | None) -> None:
        """Note a change; None: gone. What looks the same as before is no change."""
        now = dict(self.states[-1]) if self.states else {}
        if now.get(name) == value:
            return
        if value is None:
            del now[name]
        else:
            now[name] = value
        self.states.append(now)
        self.times.append(at)  # last: readers look at times first

    def at(self, when: float) -> dict[str, T]:
        """The state at a time; empty before the first change."""
        index = bisect_right(self.times, when)
        return self.states[index - 1] if index else {}

    def between(self, since: float, until: float) -> Iterator[tuple[float, dict[str, T]]]:
        """The state at ``since``, and each later one up to ``until``."""
        yield since, self.at(since)
        for at, state in list(zip(self.times, self.states, strict=False)):
            if since < at <= until:
                yield at, state


class Recorder:
    """Watches one namespace until it is stopped.

    Args:
        rest: the client; the calling thread stands in the cluster's network.
        namespace: that nothing has happened in yet.
    """

    def __init__(self, rest: Rest, namespace: str) -> None:
        self.pods: Track[Pod] = Track()
        self.wanted: Track[Wanted] = Track()
        self.said: Track[Said] = Track()
        self._rest, self._namespace = rest, namespace
        self._began = time.monotonic()
        self._stopped = threading.Event()
        self._versions: dict[str, int] = {}
        self._broken: list[str] = []
        apps = f"/apis/apps/v1/namespaces/{namespace}/deployments"
        self._watched: dict[str, Callable[[str, float, dict[str, Any]], None]] = {
            f"/api/v1/namespaces/{namespace}/pods": self._pod,
            apps: self._deployment,
            f"{ISRV}/namespaces/{namespace}/inferenceservers": self._server,
        }
        for path in self._watched:
            threading.Thread(target=self._follow, args=(path,), daemon=True).start()

    @property
    def now(self) -> float:
        """Seconds since it began, for marks."""
        return time.monotonic() - self._began

    def settled(self) -> float:
        """Wait until everything that the API server has now is written down; returns the time.

        Raises:
            AssertionError: a watch ended or does not catch up: nothing that it would say is proof.
        """
        end = time.monotonic() + CATCH_UP
        behind = sorted(self._watched)
        while behind and time.monotonic() < end:
            assert not self._broken, self._broken
            behind = [path for path in behind if not self._caught_up(path)]
        assert not behind, f"watches that do not catch up: {behind}"
        return self.now

    def stop(self) -> None:
        """Stop writing down. The watches end with the next change, at the latest with the namespace."""
        self._stopped.set()

    def fewest_ready(self, server: str | None, since: float, until: float | None = None) -> int:
        """The fewest pods of a server (None: of all) that took requests at any moment of an interval."""
        end = self.settled() if until is None else until
        return min(
            sum(pod.serves for pod in state.values() if server in {None, pod.server})
            for _, state in self.pods.between(since, end)
        )

    def serving(self, server: str) -> int:
        """Pods of a server that take requests now."""
        pods = self.pods.at(self.settled()).values()
        return sum(pod.serves for pod in pods if pod.server == server)

    def never_fewer_than(self, least: int, server: str | None, since: float) -> int:
        """Check that so many served at every moment since; returns the fewest. Raises AssertionError."""
        fewest = self.fewest_ready(server, since)
        assert fewest >= least, f"{fewest} ready where {least} were promised:\n{self.story()}"
        return fewest

    def templates(self, server: str, since: float = 0.0) -> list[str]:
        """The hashes of a Deployment's templates, in the order in which they were written."""
        found: list[str] = []
        for _, state in self.wanted.between(since, self.settled()):
            if server in state and (not found or found[-1] != state[server].generation):
                found.append(state[server].generation)
        return found

    def heard(self, server: str, kind: str, words: str, since: float) -> str | None:
        """The first message of a condition that held these words, however short a time."""
        for _, state in self.said.between(since, self.now):
            for type_, message in state[server].others if server in state else ():
                if type_ == kind and words in message:
                    return message
        return None

    def template_changed(self, server: str, since: float) -> float | None:
        """When a Deployment's template was first written otherwise than it was at ``since``."""
        first = self.wanted.at(since).get(server)
        for at, state in self.wanted.between(since, self.now):
            if first is not None and server in state and state[server].template != first.template:
                return at
        return None

    def pods_made(self, server: str, since: float = 0.0) -> list[str]:
        """Names of a server's pods that were there at any moment since."""
        return sorted(
            {
                name
                for _, state in self.pods.between(since, self.settled())
                for name, pod in state.items()
                if pod.server == server
            }
        )

    def restarts(self, server: str | None) -> int:
        """How often engines of a server's pods (None: of all) were started again in their pods."""
        most: dict[str, int] = {}
        for _, state in self.pods.between(0.0, self.settled()):
            for name, pod in state.items():
                if server in {None, pod.server}:
                    most[name] = max(most.get(name, 0), pod.restarts)
        return sum(most.values())

    def lies(self, server: str) -> list[str]:
        """Times at which Ready said True of the present spec while nothing of its template served.

        ``LAG`` is allowed, for a condition follows its pods.
        """
        end = self.settled()
        moments = sorted({*self.pods.times, *self.wanted.times, *self.said.times, end})
        found, since = [], None
        for at in moments:
            if not self._untrue(server, at):
                if since is not None and at - since > LAG:
                    found.append(f"{since:.1f} s to {at:.1f} s")
                since = None
            elif since is None:
                since = at
        if since is not None and end - since > LAG:
            found.append(f"{since:.1f} s to the end")
        return found

    def story(self) -> str:
        """Everything, a line a change, for whoever reads a failure."""
        lines = [(0.0, "began")]
        tracks: tuple[Track[Any], ...] = (self.pods, self.wanted, self.said)
        for track in tracks:
            before: dict[str, Any] = {}
            for at, state in list(zip(track.times, track.states, strict=False)):
                lines += [
                    (at, f"{name}: {state.get(name, 'gone')}")
                    for name in {**before, **state}
                    if before.get(name) != state.get(name)
                ]
                before = state
        return "\n".join(f"{at:7.2f} {text}" for at, text in sorted(lines, key=lambda x: x[0]))

    def _untrue(self, server: str, at: float) -> bool:
        said, wanted = self.said.at(at).get(server), self.wanted.at(at).get(server)
        if said is None or said.status != "True" or not said.fresh:
            return False
        if wanted is not None and wanted.replicas == 0:
            return False
        return not any(
            pod.serves
            for pod in self.pods.at(at).values()
            if pod.server == server and wanted is not None and pod.generation == wanted.generation
        )

    def _caught_up(self, path: str) -> bool:
        items = self._rest.items(path)
        return all(
            self._versions.get(item["metadata"]["uid"], 0)
            >= int(item["metadata"]["resourceVersion"])
            for item in items
        ) and {item["metadata"]["name"] for item in items} >= self._live(path)

    def _live(self, path: str) -> set[str]:
        by_kind: dict[str, Track[Any]] = {"pods": self.pods, "deployments": self.wanted}
        return set(by_kind.get(path.rsplit("/", 1)[-1], self.said).at(self.now))

    def _follow(self, path: str) -> None:
        note = self._watched[path]
        try:
            for event in self._rest.watch(path, seconds=SECONDS):
                if self._stopped.is_set():
                    return
                if event["type"] == "ERROR":
                    self._broken.append(f"{path}: {event['object']}")
                    return
                meta = event["object"]["metadata"]
                note(event["type"], self.now, event["object"])
                self._versions[meta["uid"]] = int(meta["resourceVersion"])
        except (OSError, http.client.HTTPException, RestError, ValueError) as error:
            if not self._stopped.is_set():
                self._broken.append(f"{path}: {error!r}")
            return
        if not self._stopped.is_set():
            self._broken.append(f"{path}: the watch ended")

    def _pod(self, kind: str, at: float, pod: dict[str, Any]) -> None:
        meta, status = pod["metadata"], pod.get("status", {})
        server = meta.get("labels", {}).get(SERVER_LABEL)
        if server is None:
            return
        ready = any(
            c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ())
        )
        seen = Pod(
            server=server,
            generation=meta.get("annotations", {}).get(INPUTS_HASH, ""),
            ready=ready,
            leaving="deletionTimestamp" in meta,
            restarts=sum(c["restartCount"] for c in status.get("containerStatuses", ())),
        )
        self.pods.put(at, meta["name"], None if kind == "DELETED" else seen)

    def _deployment(self, kind: str, at: float, live: dict[str, Any]) -> None:
        template = live["spec"]["template"]["metadata"]
        wanted = Wanted(
            replicas=live["spec"]["replicas"],
            generation=template.get("annotations", {}).get(INPUTS_HASH, ""),
            template=hashlib.sha256(
                json.dumps(live["spec"]["template"], sort_keys=True).encode()
            ).hexdigest(),
        )
        self.wanted.put(at, live["metadata"]["name"], None if kind == "DELETED" else wanted)

    def _server(self, kind: str, at: float, live: dict[str, Any]) -> None:
        conditions = live.get("status", {}).get("conditions", ())
        ready: dict[str, Any] = next((c for c in conditions if c["type"] == "Ready"), {})
        said = Said(
            status=ready.get("status", "Unknown"),
            reason=ready.get("reason", ""),
            message=ready.get("message", ""),
            fresh=ready.get("observedGeneration") == live["metadata"]["generation"],
            others=tuple((c["type"], c.get("message", "")) for c in conditions),
        )
        self.said.put(at, live["metadata"]["name"], None if kind == "DELETED" else said)

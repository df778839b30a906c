"""One row of docs/behaviour.md: a situation that a test makes, and what a user sees of it."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tests.cluster.world import wait

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.cluster.recorder import Recorder
    from tests.cluster.world import Tenant

STANDIN = "localhost/plimsoll-standin:0.1.0"
SMALL = "llama-1-layer"  # 2.3 GiB of weights that are a hole in a file
LIGHTLLM = {"type": "LightLLM", "image": STANDIN, "version": "1.2.0"}


def standin(engine: Mapping[str, Any] | None = None, **switches: object) -> dict[str, Any]:
    """spec.engine of a stand-in, LightLLM unless told otherwise; switches without their ``STANDIN_``."""
    env = [{"name": f"STANDIN_{name}", "value": str(value)} for name, value in switches.items()]
    return {**(engine or LIGHTLLM), "env": env}


@dataclass
class Row:
    """What is recorded of one situation.

    Attributes:
        row: its number in the table.
        what: the situation, as a heading.
        moments: what was done or had come about, with the line of ``kubectl get isrv`` at that time.
        message: of condition Ready, at the moment that tells most.
        seconds: from the act to its end.
        promised: servers that had to be ready all the time.
        fewest_ready: that were ready at the worst moment, from the watch.
        facts: what else the test has proved, a sentence each.
        began: when, on the recorder's clock.
    """

    row: int
    what: str
    moments: list[dict[str, str]] = field(default_factory=list)
    message: str = ""
    seconds: float = 0.0
    promised: int = 0
    fewest_ready: int = 0
    facts: list[str] = field(default_factory=list)
    began: float = 0.0


class Situation:
    """A tenant under observation, and its row.

    Args:
        tenant: an empty namespace.
        recorder: that watches it already.
        folder: takes the row.
    """

    def __init__(self, tenant: Tenant, recorder: Recorder, folder: Path) -> None:
        self.tenant = tenant
        self.recorder = recorder
        self._folder = folder

    @contextmanager
    def row(
        self, number: int, what: str, *, promised: int, server: str | None = "smollm2"
    ) -> Iterator[Row]:
        """Record the row while the block acts; it is written when all of the block's claims held.

        At the end, so many as promised were ready at every moment of the block, and Ready was never untrue.
        """
        began = self.recorder.settled()
        row = Row(number, what, promised=promised, began=began)
        yield row
        row.seconds = round(self.recorder.now - began, 1)
        row.fewest_ready = self.recorder.never_fewer_than(promised, server, began)
        lies = [lie for name in self._names(server) for lie in self.recorder.lies(name)]
        assert not lies, f"Ready was True without a server: {lies}\n{self.recorder.story()}"
        path = self._folder / f"{number:02}.json"
        path.write_text(json.dumps(asdict(row), indent=1) + "\n")

    def _names(self, server: str | None) -> list[str]:
        items = self.tenant.world.rest.items(self.tenant.servers)
        return [i["metadata"]["name"] for i in items] if server is None else [server]

    def reported(self, pod: str) -> int:
        """The tokens that a LightLLM's front end was told, asked through the API server."""
        core = self.tenant.core
        told = self.tenant.world.rest.call("GET", f"{core}/pods/{pod}:8000/proxy/get_server_info")
        return int(told["max_total_token_num"])

    def look(self, row: Row, moment: str, *, tells: str = "", server: str = "smollm2") -> None:
        """Note what a user sees now. ``tells``: the condition whose message is the row's; Ready's otherwise."""
        message = self.tenant.condition(tells or "Ready", server)["message"]
        self._note(row, moment, server, message)
        if tells or not row.message:
            row.message = message

    def says(self, row: Row, moment: str, kind: str, words: str, seconds: float = 20) -> None:
        """Wait until a condition's message has held these words, however short a time, and note it."""
        server, since = "smollm2", row.began

        def told() -> str | None:
            return self.recorder.heard(server, kind, words, since)

        wait(
            told,
            seconds,
            f"{kind} says {words!r}",
            lambda: [self.tenant.server(server).get("status"), self.recorder.story().splitlines()],
        )
        row.message = told() or ""
        self._note(row, moment, server, row.message)

    def _note(self, row: Row, moment: str, server: str, message: str) -> None:
        kubectl = self.tenant.world.cluster.kubectl
        header, line = kubectl(
            "-n", self.tenant.namespace, "get", "isrv", server
        ).stdout.splitlines()
        row.moments.append({"moment": moment, "header": header, "line": line, "message": message})

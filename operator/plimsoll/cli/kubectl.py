"""The cluster, through kubectl: kubeconfig, contexts and credentials are then the user's own.

Every call is bounded in time. What kubectl says on failure becomes one of our refusals, which says
what to do; exit code 5 where the cluster could not be asked, 2 where the name was wrong.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any, Final

from plimsoll.core.errors import PlimsollError
from plimsoll.core.records import dataclass

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

SERVERS: Final = "inferenceservers.plimsoll.dev"
SECONDS: Final = 15
_GRACE: Final = 5
_QUOTE: Final = 300
INSTALL: Final = (
    "helm install plimsoll oci://ghcr.io/plimsoll-dev/charts/plimsoll "
    "-n plimsoll-system --create-namespace"
)


class ClusterError(PlimsollError):
    """The cluster could not be asked, or said no."""

    default_reason = "ClusterUnreachable"
    exit_code = 5


class NotFound(PlimsollError):  # noqa: N818 - named for what a user reads
    """There is no such object."""

    default_reason = "NotFound"
    exit_code = 2


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl with the user's own flags.

    Attributes:
        flags: ``--context``, ``--kubeconfig``.
        namespace: ``-n``; None: that of the context.
        everywhere: ``-A``.
        seconds: for one call.
    """

    flags: tuple[str, ...] = ()
    namespace: str | None = None
    everywhere: bool = False
    seconds: int = SECONDS

    @classmethod
    def of(cls, chosen: argparse.Namespace) -> Kubectl:
        """From the flags of ``parsing.add_cluster``."""
        given = {"--context": chosen.context, "--kubeconfig": chosen.kubeconfig}
        flags = tuple(f"{name}={value}" for name, value in given.items() if value)
        everywhere = bool(getattr(chosen, "all_namespaces", False))
        return cls(flags, chosen.namespace, everywhere)

    def server(self, name: str) -> dict[str, Any]:
        """One InferenceServer.

        Raises:
            NotFound: names those that exist.
            ClusterError: see there.
        """
        try:
            return self.json("get", SERVERS, "--", name)
        except NotFound:
            raise self._no_server(name) from None

    def servers(self) -> list[dict[str, Any]]:
        """All InferenceServers of the namespace, or of all.

        Raises:
            ClusterError: see there.
        """
        return self.items(SERVERS)

    def items(self, kind: str, *words: str) -> list[dict[str, Any]]:
        """Objects of a kind.

        Raises:
            ClusterError: see there.
        """
        found = self.json("get", kind, *words)
        items: list[dict[str, Any]] = found.get("items", [])
        return items

    def within(self, namespace: str) -> Kubectl:
        """The same for one namespace."""
        return Kubectl(self.flags, namespace, everywhere=False, seconds=self.seconds)

    def json(self, verb: str, *words: str) -> dict[str, Any]:
        """The JSON that kubectl prints.

        Raises:
            NotFound: no such object.
            ClusterError: kubectl failed, took too long or printed something else.
        """
        place = ["--all-namespaces"] if self.everywhere else []
        if self.namespace is not None and not self.everywhere:
            place = [f"--namespace={self.namespace}"]
        text = self.run([verb, *place, "--output=json", *words])
        try:
            document = json.loads(text)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise ClusterError(
                f"kubectl {verb} printed something that is no JSON object: {text[:80]!r}",
                reason="BadAnswer",
            )
        return document

    def raw(self, path: str) -> str:
        """The body of a path of the API server, for example a pod's, through its proxy.

        Raises:
            NotFound: no such path.
            ClusterError: see there.
        """
        return self.run(["get", "--raw", path])

    def run(self, words: Sequence[str], stdin: str | None = None) -> str:
        """What kubectl prints.

        Raises:
            NotFound: no such object.
            ClusterError: kubectl is missing, failed or took too long.
        """
        program = shutil.which("kubectl")
        if program is None:
            raise ClusterError(
                "kubectl is not on PATH; install it (https://kubernetes.io/docs/tasks/tools/), "
                "or use `plimsoll fit`, which needs no cluster",
                reason="KubectlNotFound",
            )
        argv = [program, *self.flags, f"--request-timeout={self.seconds}s", *words]
        try:
            done = subprocess.run(  # noqa: S603 - kubectl from PATH, arguments as a list
                argv,
                input=stdin,
                stdin=None if stdin is not None else subprocess.DEVNULL,
                capture_output=True,
                timeout=self.seconds + _GRACE,
                check=False,
                encoding="utf-8",
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            raise ClusterError(
                f"kubectl {words[0]} gave no answer in {self.seconds + _GRACE} s; is the cluster "
                "reachable? try: kubectl version",
                reason="TimedOut",
            ) from None
        if done.returncode != 0:
            raise refusal(done.stderr)
        return done.stdout

    def _no_server(self, name: str) -> PlimsollError:
        where = f" in namespace {self.namespace}" if self.namespace else ""
        try:
            known = [str(item["metadata"]["name"]) for item in self.servers()]
        except PlimsollError:
            known = []
        there = f"there are {', '.join(known[:20])}" if known else "there are none; look with -A"
        return NotFound(
            f"no InferenceServer {name!r}{where}; {there}", reason="ServerNotFound", value=name
        )


_FORBIDDEN: Final = re.compile(
    r"cannot (\w+) resource \"([\w./-]+)\" in API group \"([\w.-]*)\"(.*)"
)
_NO_SERVER: Final = ("was refused", "Unable to connect", "no such host", "i/o timeout", "deadline")


def refusal(stderr: str) -> PlimsollError:
    """What kubectl's words on failure mean, and what to do."""
    lines = [line for line in stderr.splitlines() if line and not re.match(r"[EWI]\d{4} ", line)]
    said = " ".join(" ".join(lines).split())[:_QUOTE] or "kubectl failed without a word"
    forbidden = _FORBIDDEN.search(said)
    if forbidden is not None:
        verb, resource, group, _ = forbidden.groups()
        right = f"{resource}.{group}" if group else resource
        return ClusterError(
            f"you may not {verb} {right}; ask for a Role with verbs [{verb}] on resources "
            f"[{resource}] of apiGroups [{group!r}] ({said})",
            reason="Forbidden",
        )
    if "doesn't have a resource type" in said:
        return ClusterError(
            f"this cluster has no InferenceServers; install Plimsoll first: {INSTALL}",
            reason="NotInstalled",
        )
    if "(NotFound)" in said:
        return NotFound(said)
    if "(Unauthorized)" in said or "must be logged in" in said:
        return ClusterError(
            f"the cluster does not accept your credentials; log in again ({said})",
            reason="Unauthorized",
        )
    if any(words in said for words in _NO_SERVER):
        return ClusterError(
            f"the cluster does not answer; see `kubectl config current-context` and KUBECONFIG ({said})"
        )
    return ClusterError(said, reason="KubectlFailed")

"""One leader at a time: a Lease in the operator's own namespace.

Expiry is judged as client-go does: a record that we have not seen change for its duration, by our
own monotonic clock, is dead. Wall clocks of different nodes are never compared. The
resourceVersion of the read is the compare-and-swap of the write.

A holder that cannot renew in time must stop at once (the process exits); writes are made harmless
for the seconds of doubt by server-side apply and by the resourceVersion in each status write.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.controller.cluster import LEASES, Cluster, Conflict, Object, Refused, Retry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds, as in client-go's defaults."""

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0


class Lease:
    """A candidate for leadership.

    Args:
        cluster: where the Lease object lives.
        namespace: of the Lease object.
        name: of the Lease object.
        identity: ``<pod name>_<random>``. A record of the same pod is taken over without waiting:
            the kubelet runs one incarnation of a container at a time.
        clock: monotonic seconds.
        now: wall time with a zone, written for people to read.
        sleep: seconds to wait; an argument for tests.
        times: durations.
    """

    def __init__(  # noqa: PLR0913  # four names and three edges of the world, all required
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        identity: str,
        *,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        times: LeaseTimes | None = None,
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self._times = times or LeaseTimes()
        self._seen: tuple[str, str] | None = None  # holder and renewTime, as last observed
        self._seen_at = 0.0
        self._renewed_at = 0.0
        self._answered_at = clock()
        self.held = False

    def silent_seconds(self) -> float:
        """For how long the API server has not answered what we asked about the Lease."""
        return self._clock() - self._answered_at

    async def acquire(self) -> None:
        """Wait until we are the leader."""
        while not await self._attempt():
            await self._sleep(self._times.retry)
        logger.info("acquired the lease %s/%s as %s", self._namespace, self._name, self._identity)

    async def hold(self) -> str:
        """Renew until leadership is lost; returns why. The caller must then end the process."""
        while True:
            await self._sleep(self._times.retry)
            left = self._times.renew_deadline - (self._clock() - self._renewed_at)
            try:
                # A renewal that hangs must not outlive the deadline.
                async with asyncio.timeout(max(0.0, left)):
                    renewed = await self._attempt()
            except TimeoutError:
                renewed = False
            if not renewed and self._holder_is_other():
                self.held = False
                return f"the lease {self._name} was taken by {self._seen and self._seen[0]}"
            if not renewed and self._clock() - self._renewed_at >= self._times.renew_deadline:
                self.held = False
                return f"the lease {self._name} could not be renewed in time"

    async def release(self) -> None:
        """Give the lease back so that a successor need not wait; best effort."""
        if not self.held:
            return
        self.held = False
        try:
            live = await self._cluster.get(LEASES, self._namespace, self._name)
            if live is not None and live["spec"].get("holderIdentity") == self._identity:
                await self._cluster.replace(self._record(live, holder=""))
        except (Retry, Refused) as error:
            logger.warning("could not release the lease: %s", error)

    async def _attempt(self) -> bool:
        """One try to acquire or renew; False where another holds it or nothing was decided."""
        started = self._clock()
        try:
            held = await self._try()
        except Conflict:
            self._answered_at = self._clock()
            return False  # another candidate wrote first; the next read shows who
        except (Retry, Refused) as error:
            logger.warning("lease %s/%s: %s", self._namespace, self._name, error)
            return False
        self._answered_at = self._clock()
        if held:
            # Counted from before the write: the record is at least as young as this.
            self._renewed_at = started
            self.held = True
        return held

    async def _try(self) -> bool:
        live = await self._cluster.get(LEASES, self._namespace, self._name)
        if live is None:
            created = await self._cluster.create(self._record(None, holder=self._identity))
            self._observe(created)
            return self._seen_holder() == self._identity
        self._observe(live)
        if not self._may_take(live):
            return False
        written = await self._cluster.replace(self._record(live, holder=self._identity))
        if written is None:
            return False
        self._observe(written)
        return True

    def _may_take(self, live: Object) -> bool:
        holder = self._seen_holder()
        if holder in {"", self._identity}:
            return True
        if self.held:
            return False  # lost: whoever took it is working, so this process must end
        if _pod(holder) == _pod(self._identity):
            return True
        duration = float(live["spec"].get("leaseDurationSeconds") or self._times.duration)
        return self._clock() - self._seen_at >= duration

    def _observe(self, live: Object) -> None:
        spec = live.get("spec") or {}
        seen = (str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or ""))
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock()

    def _seen_holder(self) -> str:
        return self._seen[0] if self._seen else ""

    def _holder_is_other(self) -> bool:
        return self._seen_holder() not in {"", self._identity}

    def _record(self, live: Object | None, holder: str) -> Object:
        now = self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old = (live or {}).get("spec") or {}
        changed = old.get("holderIdentity") != holder
        metadata = {"name": self._name, "namespace": self._namespace}
        if live is not None:
            metadata["resourceVersion"] = live["metadata"]["resourceVersion"]
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": metadata,
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": max(1, round(self._times.duration)) if holder else 1,
                "acquireTime": now if changed else old.get("acquireTime", now),
                "renewTime": now,
                "leaseTransitions": int(old.get("leaseTransitions") or 0) + int(changed),
            },
        }


def _pod(identity: str) -> str:
    return identity.rpartition("_")[0]

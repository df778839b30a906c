"""The fake cluster tells the truth: the same scenarios on it and on a real API server."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from plimsoll.controller.cluster import (
    ALL_PODS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    LEASES,
    MANAGED_SELECTOR,
    PODS,
    SERVERS,
    SERVICES,
    Cluster,
    Conflict,
    Object,
    Refused,
    resource_of,
)
from plimsoll.controller.kube import connect
from tests.cluster_kit import Cluster as LocalCluster
from tests.unit.controller.fake_cluster import FakeCluster

MANIFESTS = Path(__file__).parents[2] / "manifests"
LABEL = dict([MANAGED_SELECTOR.split("=")])


@pytest.fixture
def namespace() -> str:
    return f"fake-{uuid4().hex[:8]}"


def pod(namespace: str, name: str = "p", **labels: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {**LABEL, **labels}},
        "spec": {"containers": [{"name": "c", "image": "localhost/none:1"}]},
    }


def deployment(namespace: str, *args: str, **spec: Any) -> Object:
    containers = [{"name": "server", "image": "localhost/none:1", "args": list(args)}]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "namespace": namespace, "labels": dict(LABEL)},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "d"}},
            "template": {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": containers}},
            **spec,
        },
    }


def _service(namespace: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s", "namespace": namespace, "labels": dict(LABEL)},
        "spec": {"selector": {"app": "d"}, "ports": [{"name": "http", "port": 80}]},
    }


def _selecting(obj: Object) -> Object:
    """The object with the selector of another application."""
    if obj["kind"] == "Service":
        return {**obj, "spec": {**obj["spec"], "selector": {"app": "other"}}}
    template = {**obj["spec"]["template"], "metadata": {"labels": {"app": "other"}}}
    wanted = {"selector": {"matchLabels": {"app": "other"}}, "template": template}
    return {**obj, "spec": {**obj["spec"], **wanted}}


async def server(cluster: Cluster, namespace: str) -> Object:
    """An InferenceServer, made as a user would."""
    obj: Object = {
        "apiVersion": SERVERS.api_version,
        "kind": SERVERS.kind,
        "metadata": {"name": "llama", "namespace": namespace},
        "spec": {
            "model": {"source": {"persistentVolumeClaim": {"claimName": "models"}}},
            "engine": {"type": "LlamaCpp", "image": "localhost/none:1"},
        },
    }
    return await cluster.create(obj)


async def edit(cluster: Cluster, namespace: str, change: Callable[[Object], None]) -> None:
    """Change the Deployment as somebody else; its controller may write its status in between."""
    while True:
        live = await cluster.get(DEPLOYMENTS, namespace, "d")
        assert live is not None
        change(live)
        try:
            assert await cluster.replace(live) is not None
        except Conflict:
            continue
        return


def status(reason: str, **more: Any) -> dict[str, Any]:
    condition = {
        "type": "Ready",
        "status": "False",
        "reason": reason,
        "message": "No.",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }
    return {"observedGeneration": 1, "ready": "0/1", "conditions": [condition], **more}


def args_of(obj: Object) -> list[str]:
    found: list[str] = obj["spec"]["template"]["spec"]["containers"][0].get("args", [])
    return found


def version(obj: Object | None) -> int:
    assert obj is not None
    return int(obj["metadata"]["resourceVersion"])


class Scenarios:
    """What both must do; subclasses say which cluster."""

    async def test_what_is_not_there_is_none(self, cluster: Cluster, namespace: str) -> None:
        assert await cluster.served()
        assert await cluster.get(PODS, namespace, "p") is None
        await cluster.delete(PODS, namespace, "p", "no-such-uid")
        ghost = {**pod(namespace), "status": {}}
        ghost["metadata"] |= {"uid": "u", "resourceVersion": "1"}
        assert await cluster.patch_status(ghost) is None

    async def test_create_gives_an_identity_and_creating_again_the_same_one(
        self, cluster: Cluster, namespace: str
    ) -> None:
        first = await cluster.create(pod(namespace, one="1"))
        again = await cluster.create(pod(namespace, two="2"))
        assert first["metadata"]["uid"] == again["metadata"]["uid"]
        assert again["metadata"]["labels"].get("one") == "1"
        assert "two" not in again["metadata"]["labels"]
        assert await cluster.get(PODS, namespace, "p") is not None

    async def test_apply_without_force_creates_and_spares_what_somebody_else_made(
        self, cluster: Cluster, namespace: str
    ) -> None:
        first = await cluster.apply(deployment(namespace, "a"), force=False)
        assert args_of(first) == ["a"]
        assert args_of(await cluster.apply(deployment(namespace, "b"), force=False)) == ["b"]
        for obj in (deployment(namespace, "c"), _service(namespace)):
            theirs = {**obj, "metadata": {"name": "theirs", "namespace": namespace}}
            live = await cluster.apply(theirs, "somebody")
            ours = _selecting({**obj, "metadata": {**obj["metadata"], "name": "theirs"}})
            with pytest.raises(Conflict):
                await cluster.apply(ours, force=False)
            resource = resource_of(obj["apiVersion"], obj["kind"])
            after = await cluster.get(resource, namespace, "theirs")
            assert after is not None
            assert after["spec"] == live["spec"]
            assert "labels" not in after["metadata"]

    async def test_delete_spares_another_incarnation(
        self, cluster: Cluster, namespace: str
    ) -> None:
        live = await cluster.create(pod(namespace))
        await cluster.delete(PODS, namespace, "p", "00000000-0000-0000-0000-000000000000")
        assert await cluster.get(PODS, namespace, "p") is not None
        await cluster.delete(PODS, namespace, "p", live["metadata"]["uid"])
        assert await cluster.get(PODS, namespace, "p") is None  # no node had it: gone at once
        assert (await cluster.create(pod(namespace)))["metadata"]["uid"] != live["metadata"]["uid"]

    async def test_lists_are_filtered_and_versioned(self, cluster: Cluster, namespace: str) -> None:
        await cluster.create(pod(namespace, "ours"))
        foreign = pod(namespace, "foreign")
        foreign["metadata"]["labels"] = {}
        await cluster.create(foreign)
        listing = await cluster.list(PODS, namespace)
        assert [item["metadata"]["name"] for item in listing.items] == ["ours"]
        assert int(listing.version) >= version(listing.items[0])
        everywhere = await cluster.list(PODS)
        assert "ours" in [item["metadata"]["name"] for item in everywhere.items]

    async def test_pages_hold_everybodys_pods_that_a_node_has(
        self, cluster: Cluster, namespace: str
    ) -> None:
        for number in range(3):
            bound = pod(namespace, f"bound-{number}")
            bound["metadata"]["labels"] = {}
            bound["spec"]["nodeName"] = "no-such-node"
            await cluster.create(bound)
        await cluster.create(pod(namespace, "waits"))
        fields = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
        names: list[str] = []
        token, pages = "", 0
        versions: set[str] = set()
        while pages == 0 or token:
            page = await cluster.page(ALL_PODS, fields=fields, limit=2, token=token)
            assert len(page.items) <= 2
            versions.add(page.version)
            token, pages = page.more, pages + 1
            names += [
                item["metadata"]["name"]
                for item in page.items
                if item["metadata"]["namespace"] == namespace
            ]
        assert sorted(names) == ["bound-0", "bound-1", "bound-2"]
        assert pages >= 2
        (version_of_all,) = versions  # one collection, however many parts
        assert version_of_all.isdecimal()
        one = await cluster.page(ALL_PODS, fields=f"metadata.namespace={namespace}", limit=9)
        assert (len(one.items), one.more) == (4, "")

    async def test_a_page_of_one_namespace_holds_the_events_of_one_object(
        self, cluster: Cluster, namespace: str
    ) -> None:
        for name, uid in (("mine", "uid-1"), ("another", "uid-2")):
            event = {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": namespace},
                "involvedObject": {"kind": "Pod", "namespace": namespace, "name": "p", "uid": uid},
                "reason": "TriggeredScaleUp",
                "message": "pod triggered scale-up",
                "lastTimestamp": "2026-12-01T12:00:00Z",
            }
            assert await cluster.create_event(event)
        fields = "involvedObject.uid=uid-1"
        page = await cluster.page(EVENTS, namespace=namespace, fields=fields, limit=50)
        assert [item["metadata"]["name"] for item in page.items] == ["mine"]
        elsewhere = await cluster.page(EVENTS, namespace="default", fields=fields, limit=50)
        assert elsewhere.items == []

    async def test_each_manager_of_a_map_has_its_own_entries(
        self, cluster: Cluster, namespace: str
    ) -> None:
        def entry(key: str, value: str) -> Object:
            return {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "m", "namespace": namespace, "labels": dict(LABEL)},
                "data": {key: value},
            }

        await cluster.apply(entry("a", "1"), "writer-a")
        await cluster.apply(entry("b", "1"), "writer-b")
        await cluster.apply(entry("a", "2"), "writer-a")
        live = await cluster.apply(entry("c", "3"), "writer-a")
        assert live["data"] == {"b": "1", "c": "3"}
        assert await cluster.get(CONFIG_MAPS, namespace, "m") == live

    async def test_apply_creates_changes_and_is_silent_without_a_change(
        self, cluster: Cluster, namespace: str
    ) -> None:
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "s", "namespace": namespace, "labels": dict(LABEL)},
            "spec": {"ports": [{"port": 80, "name": "http", "protocol": "TCP"}]},
        }
        made = await cluster.apply(service)
        same = await cluster.apply(service)
        assert version(same) == version(made)
        first = await cluster.apply(deployment(namespace, "--a=1"))
        changed = await cluster.apply(deployment(namespace, "--a=2", "--b"))
        assert version(changed) > version(first)
        assert args_of(changed) == ["--a=2", "--b"]
        assert (first["metadata"]["generation"], changed["metadata"]["generation"]) == (1, 2)

    async def test_apply_drops_what_it_no_longer_says_and_keeps_what_others_added(
        self, cluster: Cluster, namespace: str
    ) -> None:
        full = deployment(namespace, "--a=1", minReadySeconds=5)
        full["metadata"]["annotations"] = {"ours": "1"}
        full["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "OURS", "value": "1"}]
        await cluster.apply(full)

        def add(obj: Object) -> None:
            template = obj["spec"]["template"]["spec"]
            obj["metadata"]["annotations"]["theirs"] = "2"
            template["containers"].append({"name": "mesh", "image": "localhost/m:1"})
            template["nodeSelector"] = {"theirs": "2"}

        await edit(cluster, namespace, add)
        merged = await cluster.apply(deployment(namespace, "--a=1"))
        template = merged["spec"]["template"]["spec"]
        assert "minReadySeconds" not in merged["spec"]
        assert merged["metadata"]["annotations"].get("theirs") == "2"
        assert "ours" not in merged["metadata"]["annotations"]
        assert [c["name"] for c in template["containers"]] == ["server", "mesh"]
        assert "env" not in template["containers"][0]
        assert template["nodeSelector"] == {"theirs": "2"}

    async def test_force_takes_back_what_another_changed(
        self, cluster: Cluster, namespace: str
    ) -> None:
        await cluster.apply(deployment(namespace, "--a=1"))

        def tamper(obj: Object) -> None:
            obj["spec"]["template"]["spec"]["containers"][0]["args"] = ["--a=9"]

        await edit(cluster, namespace, tamper)
        assert args_of(await cluster.apply(deployment(namespace, "--a=1"))) == ["--a=1"]

    async def test_apply_with_a_uid_means_that_very_object(
        self, cluster: Cluster, namespace: str
    ) -> None:
        made = await cluster.apply(deployment(namespace, "--a=1"))
        meant = deployment(namespace, "--a=2")
        meant["metadata"]["uid"] = made["metadata"]["uid"]
        assert args_of(await cluster.apply(meant)) == ["--a=2"]
        await cluster.delete(DEPLOYMENTS, namespace, "d", made["metadata"]["uid"])
        with pytest.raises(Conflict):
            await cluster.apply(meant)
        assert await cluster.get(DEPLOYMENTS, namespace, "d") is None
        await cluster.apply(deployment(namespace, "--a=3"))
        with pytest.raises(Conflict):
            await cluster.apply(meant)

    async def test_apply_never_touches_the_status(self, cluster: Cluster, namespace: str) -> None:
        made = await cluster.apply({**deployment(namespace), "status": {"replicas": 7}})
        assert (made.get("status") or {}).get("replicas") is None

    async def test_status_is_apart_from_the_spec(self, cluster: Cluster, namespace: str) -> None:
        made = await server(cluster, namespace)
        assert "status" not in made
        live = await cluster.patch_status({**made, "status": status("First")})
        assert live is not None
        assert live["status"]["conditions"][0]["reason"] == "First"
        assert live["metadata"]["generation"] == made["metadata"]["generation"] == 1
        assert version(live) > version(made)
        assert live["spec"] == made["spec"]

    async def test_a_status_is_whole_and_written_on_the_newest_object_only(
        self, cluster: Cluster, namespace: str
    ) -> None:
        made = await server(cluster, namespace)
        first = await cluster.patch_status({**made, "status": status("First", endpoint="http://x")})
        assert first is not None
        assert first["status"]["endpoint"] == "http://x"
        with pytest.raises(Conflict):
            await cluster.patch_status({**made, "status": status("Stale")})
        second = await cluster.patch_status({**first, "status": status("Second")})
        assert second is not None
        assert "endpoint" not in second["status"]
        assert [c["reason"] for c in second["status"]["conditions"]] == ["Second"]
        same = await cluster.patch_status({**second, "status": status("Second")})
        assert version(same) == version(second)

    async def test_a_json_patch_hits_one_version_or_nothing(
        self, cluster: Cluster, namespace: str
    ) -> None:
        obj: Object = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": "s",
                "namespace": namespace,
                "labels": {**LABEL, "one": "1", "two": "2"},
            },
            "spec": {"ports": [{"port": 80, "name": "http", "protocol": "TCP"}]},
        }
        made = await cluster.create(obj)
        ops = [
            {"op": "remove", "path": "/metadata/labels/one"},
            {"op": "add", "path": "/metadata/labels/a~1b", "value": "c"},
            {"op": "replace", "path": "/metadata/labels/two", "value": "3"},
        ]
        live = await cluster.patch(made, ops)
        assert live is not None
        labels = {k: v for k, v in live["metadata"]["labels"].items() if k not in LABEL}
        assert labels == {"a/b": "c", "two": "3"}
        with pytest.raises(Conflict):
            await cluster.patch(made, ops[1:])
        nothing = await cluster.patch(live, ops[1:])
        assert version(nothing) == version(live)
        with pytest.raises(Refused) as caught:
            await cluster.patch(live, ops[:1])  # there is no such label any more
        assert (caught.value.status, caught.value.reason) == (422, "Invalid")
        await cluster.delete(SERVICES, namespace, "s", live["metadata"]["uid"])
        assert await cluster.patch(live, ops[1:]) is None

    async def test_what_others_wrote_into_a_status_outlives_an_apply_and_not_a_replacement(
        self, cluster: Cluster, namespace: str
    ) -> None:
        made = await server(cluster, namespace)
        forged = await cluster.replace_status({**made, "status": {"ready": "9/9", "replicas": 7}})
        assert forged is not None
        applied = await cluster.patch_status({**forged, "status": status("Ours")})
        assert applied is not None
        assert applied["status"]["replicas"] == 7
        with pytest.raises(Conflict):
            await cluster.replace_status({**forged, "status": status("Stale")})
        ours = await cluster.replace_status({**applied, "status": status("Ours")})
        assert ours is not None
        assert ours["status"] == status("Ours")
        # The fields are still the applier's: what it no longer says goes.
        bare = await cluster.patch_status({**ours, "status": {"ready": "0/1"}})
        assert bare is not None
        assert bare["status"] == {"ready": "0/1"}

    async def test_a_status_planned_on_a_former_incarnation_is_refused(
        self, cluster: Cluster, namespace: str
    ) -> None:
        old = await server(cluster, namespace)
        await cluster.delete(SERVERS, namespace, "llama", old["metadata"]["uid"])
        await server(cluster, namespace)
        with pytest.raises(Conflict):
            await cluster.patch_status({**old, "status": status("Ghost")})

    async def test_a_lease_is_compared_and_swapped(self, cluster: Cluster, namespace: str) -> None:
        lease: Object = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": "l", "namespace": namespace},
            "spec": {"holderIdentity": "a"},
        }
        made = await cluster.create(lease)
        taken = await cluster.replace({**made, "spec": {"holderIdentity": "b"}})
        assert taken is not None
        with pytest.raises(Conflict):
            await cluster.replace({**made, "spec": {"holderIdentity": "c"}})
        absent = {
            **lease,
            "metadata": {**lease["metadata"], "name": "none", "resourceVersion": "1"},
        }
        assert await cluster.replace(absent) is not None  # a Lease is created by an update, too

    async def test_replacing_what_is_gone_does_not_bring_it_back(
        self, cluster: Cluster, namespace: str
    ) -> None:
        live = await cluster.apply(deployment(namespace))
        await cluster.delete(DEPLOYMENTS, namespace, "d", live["metadata"]["uid"])
        assert await cluster.replace(live) is None

    async def test_an_event_is_made_once_and_then_counted(
        self, cluster: Cluster, namespace: str
    ) -> None:
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "llama.1", "namespace": namespace},
            "involvedObject": {
                "apiVersion": SERVERS.api_version,
                "kind": SERVERS.kind,
                "namespace": namespace,
                "name": "llama",
            },
            "type": "Normal",
            "reason": "Sized",
            "message": "m",
            "count": 1,
            "firstTimestamp": "2026-01-01T00:00:00Z",
            "lastTimestamp": "2026-01-01T00:00:00Z",
            "source": {"component": "plimsoll-operator"},
        }
        assert await cluster.create_event(event)
        assert not await cluster.create_event(event)
        live = await cluster.patch_event(namespace, "llama.1", {"count": 2})
        assert (live["count"], live["reason"]) == (2, "Sized")
        with pytest.raises(Refused) as caught:
            await cluster.patch_event(namespace, "none", {"count": 2})
        assert caught.value.status == 404

    async def test_a_namespace_that_is_not_there_refuses(self, cluster: Cluster) -> None:
        with pytest.raises(Refused) as caught:
            await cluster.create(pod("no-such-namespace"))
        assert (caught.value.status, caught.value.reason) == (404, "NotFound")

    async def test_versions_grow_over_all_kinds(self, cluster: Cluster, namespace: str) -> None:
        first = await cluster.create(pod(namespace))
        second = await cluster.apply(deployment(namespace))
        assert version(second) > version(first)
        listing = await cluster.list(SERVICES, namespace)
        assert int(listing.version) >= version(second)
        await cluster.delete(DEPLOYMENTS, namespace, "d", second["metadata"]["uid"])
        later = await cluster.list(SERVICES, namespace)
        assert int(later.version) > int(listing.version)


class TestFake(Scenarios):
    @pytest.fixture
    def cluster(self, namespace: str) -> FakeCluster:
        return FakeCluster(namespaces={namespace})


@pytest.mark.contract
class TestReal(Scenarios):
    @pytest.fixture
    async def cluster(self, api_cluster: LocalCluster, namespace: str) -> AsyncIterator[Cluster]:
        api_cluster.kubectl("apply", "--server-side", "-f", str(MANIFESTS / "crd.yaml"))
        # A new CRD has no status for a moment, over which a wait for a condition stumbles.
        for what in ("jsonpath={.status.conditions}", "condition=Established"):
            api_cluster.kubectl("wait", f"--for={what}", "crd/inferenceservers.plimsoll.dev")
        api_cluster.kubectl("create", "namespace", namespace)
        async with await connect(str(api_cluster.kubeconfig)) as kube:
            yield kube
        api_cluster.kubectl("delete", "namespace", namespace, "--wait=false")

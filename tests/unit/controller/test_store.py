"""The store never goes back in time, never raises the dead, and forgets ghosts."""

import copy
import tracemalloc
from typing import Any

import pytest

from plimsoll.controller.cluster import PODS, SERVERS, Listing
from plimsoll.controller.store import Merge, Store, controller_of, key_of, trim

KEY = ("default", "llama")


def server(version: int = 1, uid: str = "u-1", name: str = "llama", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "plimsoll.dev/v1alpha1",
        "kind": "InferenceServer",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid,
            "resourceVersion": str(version),
        },
        "spec": spec,
    }


def pod(
    name: str, version: int = 1, uid: str | None = None, label: str = "server", of: str = "llama"
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid or f"u-{name}",
            "resourceVersion": str(version),
            "labels": {f"plimsoll.dev/{label}": of},
        },
        "spec": {},
    }


@pytest.fixture(params=[1, 512], ids=["packed", "as they are"])
def store(request: pytest.FixtureRequest) -> Store:
    return Store(recent=request.param)


def names(store: Store, key: tuple[str, str] = KEY) -> list[str]:
    return [p["metadata"]["name"] for p in store.children("Pod", key)]


def test_an_older_version_never_replaces_a_newer_one(store: Store) -> None:
    assert store.put(server(9, replicas=2))  # 9 < 10 as numbers, not as text
    assert store.put(server(10, replicas=3))
    assert not store.put(server(9, replicas=2), watched=True)
    kept = store.get("InferenceServer", *KEY)
    assert kept is not None
    assert kept["spec"] == {"replicas": 3}


def test_a_late_answer_cannot_raise_the_dead(store: Store) -> None:
    store.put(pod("a", 5))
    assert store.remove(pod("a", 7))
    assert not store.put(pod("a", 6))
    assert names(store) == []


def test_a_child_that_lost_its_label_and_got_it_back_returns(store: Store) -> None:
    store.put(pod("a", 5))
    store.remove(pod("a", 7))  # how a label selector reports the loss
    assert store.put(pod("a", 8))
    assert names(store) == ["a"]


def test_deleting_an_old_incarnation_leaves_the_new_one(store: Store) -> None:
    store.put(pod("a", 9, uid="new"))
    assert not store.remove(pod("a", 8, uid="old"))
    assert names(store) == ["a"]


def test_children_are_found_by_label_of_either_kind_and_by_owner(store: Store) -> None:
    owned = pod("c")
    owned["metadata"]["labels"] = {}
    owned["metadata"]["ownerReferences"] = [
        {"kind": "InferenceServer", "name": "llama", "uid": "u-1", "controller": True}
    ]
    for obj in (pod("b"), pod("a", label="sizing-for"), owned, pod("x", of="other")):
        store.put(obj)
    assert names(store) == ["a", "b", "c"]
    assert names(store, ("default", "other")) == ["x"]
    assert set(store.servers()) == {KEY, ("default", "other")}


def test_a_child_that_changes_hands_leaves_the_old_owner(store: Store) -> None:
    store.put(pod("a", 1))
    store.put(pod("a", 2, of="other"))
    assert names(store) == []
    assert names(store, ("default", "other")) == ["a"]
    assert set(store.servers()) == {("default", "other")}


def test_a_replica_set_is_not_a_server() -> None:
    obj = pod("a")
    obj["metadata"]["labels"] = {}
    obj["metadata"]["ownerReferences"] = [
        {"kind": "ReplicaSet", "name": "llama", "uid": "r", "controller": True}
    ]
    assert key_of(obj) is None
    owner = controller_of(obj)
    assert owner is not None
    assert owner["uid"] == "r"


def test_merge_drops_ghosts_and_keeps_what_is_newer_than_the_list(store: Store) -> None:
    store.put(pod("ghost", 3))
    store.put(pod("late", 12))
    store.put(server(4))
    item = {k: v for k, v in pod("listed", 8).items() if k not in {"apiVersion", "kind"}}
    changed = store.merge(PODS, None, Listing([item], "10"))
    assert names(store) == ["late", "listed"]
    assert store.get("InferenceServer", *KEY) is not None  # another kind: not this list's business
    assert changed == {KEY}
    assert not store.put(pod("ghost", 3))  # an answer to a write that is older than its end


def test_a_list_in_parts_drops_only_what_no_part_held(store: Store) -> None:
    for name in "abc":
        store.put(pod(name, 1))
    merge = Merge(store, PODS, None)
    merge.take([pod("c", 5)])
    assert names(store) == ["a", "b", "c"]
    merge.take([pod("a", 1)])
    assert merge.end("9") == {KEY}
    assert names(store) == ["a", "c"]


def test_merge_of_one_namespace_leaves_the_others(store: Store) -> None:
    other = pod("a", 3)
    other["metadata"]["namespace"] = "elsewhere"
    store.put(other)
    store.merge(PODS, "default", Listing([], "10"))
    assert [p["metadata"]["name"] for p in store.children("Pod", ("elsewhere", "llama"))] == ["a"]


def test_what_only_a_list_knows_is_unconfirmed_until_the_watch_tells(store: Store) -> None:
    store.put(server(4), watched=True)
    store.merge(SERVERS, None, Listing([server(4)], "9"))
    assert store.unconfirmed("InferenceServer") == 0
    store.merge(SERVERS, None, Listing([server(6)], "9"))
    assert store.unconfirmed("InferenceServer") == 1
    store.put(server(5), watched=True)  # the watch lags behind: no proof yet
    assert store.unconfirmed("InferenceServer") == 1
    store.put(server(7))  # our own write proves nothing about the watch
    assert store.unconfirmed("InferenceServer") == 1
    store.put(server(6), watched=True)
    assert store.unconfirmed("InferenceServer") == 0


def test_trim_drops_the_bulk_and_foreign_environments() -> None:
    obj = pod("a")
    obj["metadata"]["managedFields"] = [{"manager": "x"}]
    obj["metadata"]["annotations"] = {
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
        "kept": "yes",
    }
    obj["spec"] = {
        "nodeName": "n1",
        "containers": [
            {"name": "server", "env": [{"name": "A"}]},
            {"name": "mesh", "image": "m", "env": [{"name": "TOKEN"}], "envFrom": [{}]},
        ],
    }
    obj["status"] = {"phase": "Running"}
    kept = trim(obj)
    assert "managedFields" not in kept["metadata"]
    assert kept["metadata"]["annotations"] == {"kept": "yes"}
    assert kept["spec"]["containers"] == [
        {"name": "server", "env": [{"name": "A"}]},
        {"name": "mesh", "image": "m"},
    ]
    assert kept["status"] == {"phase": "Running"}
    assert "managedFields" in obj["metadata"]  # the input is left alone
    assert "env" in obj["spec"]["containers"][1]


def deployment(version: int, **status: Any) -> dict[str, Any]:
    obj = pod("llama", version)
    return {**obj, "apiVersion": "apps/v1", "kind": "Deployment", "status": status}


PROGRESSING = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}
FAILURE = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "no"}
LATE = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}


@pytest.mark.parametrize(
    ("after", "news"),
    [
        ({"observedGeneration": 1, "replicas": 3, "readyReplicas": 2}, False),
        ({"observedGeneration": 1, "conditions": [PROGRESSING]}, False),
        ({"observedGeneration": 2}, True),
        ({"observedGeneration": 1, "updatedReplicas": 1}, True),
        ({"observedGeneration": 1, "conditions": [FAILURE]}, True),
        ({"observedGeneration": 1, "conditions": [LATE]}, True),
    ],
)
def test_of_a_deployment_only_what_steps_read_is_news(
    store: Store, after: dict[str, Any], *, news: bool
) -> None:
    store.put(deployment(1, observedGeneration=1))
    assert store.put(deployment(2, **after)) is news
    found = store.get("Deployment", *KEY)
    assert found is not None
    assert found["metadata"]["resourceVersion"] == "2"  # for the precondition of the next patch


def test_the_times_of_a_deployments_condition_are_no_news(store: Store) -> None:
    store.put(deployment(1, conditions=[{**FAILURE, "lastUpdateTime": "1"}]))
    assert not store.put(deployment(2, conditions=[{**FAILURE, "lastUpdateTime": "2"}]))


def test_a_list_that_knows_a_newer_version_waits_for_the_watch_even_without_news(
    store: Store,
) -> None:
    store.put(server(4), watched=True)
    assert store.merge(SERVERS, None, Listing([server(6)], "9")) == set()
    assert store.unconfirmed("InferenceServer") == 1


def test_what_is_packed_comes_back_as_it_was() -> None:
    store = Store(recent=1)
    texts = ("gr\u00fc\u00df", "", "\u0000")
    for number, text in enumerate(texts):
        store.put(pod(f"p{number}", number + 1) | {"spec": {"x": [text, None, 1.5, True, {}]}})
    found = [p["spec"]["x"][0] for p in store.children("Pod", KEY)]
    assert found == list(texts)
    assert len(store) == len(texts)
    store.remove(pod("p1", 9))
    assert names(store) == ["p0", "p2"]


def test_thousands_of_servers_take_little_memory() -> None:
    """Measured as allocations: what a server and its children cost beside what must be kept of them."""
    live = deployment(1, observedGeneration=1)
    live["spec"] = {
        "template": {"spec": {"containers": [{"args": [f"--x={n}"]} for n in range(60)]}}
    }
    store = Store(recent=8)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(400):
            store.put(server(1, name=f"s{number}", uid=f"u{number}"))
            metadata = {**live["metadata"], "name": f"s{number}", "uid": f"d{number}"}
            store.put(copy.deepcopy({**live, "metadata": metadata}))
        each = (tracemalloc.get_traced_memory()[0] - before) / 400
    finally:
        tracemalloc.stop()
    assert each < 3000

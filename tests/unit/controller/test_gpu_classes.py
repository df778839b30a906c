"""Several kinds of GPU: which is preferred, and a number for each."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.controller.objects import Pin, deployment, sizing_pod
from plimsoll.controller.objects.affinity import (
    class_preferences,
    falling_weights,
    with_node_preferences,
)
from plimsoll.controller.objects.hashes import sizing_key
from plimsoll.controller.plan import plan
from plimsoll.controller.steps.gpu_classes import classes, kinds
from tests.unit.controller.builders import (
    CONTEXT,
    DEVICE,
    GPU_LABEL,
    NOW,
    PRODUCT,
    REPORT,
    TOKENS,
    message,
    server,
)
from tests.unit.controller.inpod_worlds import A100, WRAPPED, known, kubelets, measuring
from tests.unit.controller.plan_worlds import serving, text, writes
from tests.unit.controller.test_inpod_sizing import HALF, said
from tests.unit.controller.test_stored_servers import STAMP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.controller.observed import Observed

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
CLOUD = "cloud.example/gpu"
THREE = ("L4", "A100", "H100")

# -- which is preferred ---------------------------------------------------------------------------

# Rendered into templates, so never other numbers on another machine.
WEIGHTS: list[tuple[int, list[int]]] = [
    (0, []),
    (1, []),
    (2, [100]),
    (3, [100, 10]),
    (4, [100, 22, 5]),
    (5, [100, 32, 10, 3]),
    (8, [100, 52, 27, 14, 7, 4, 2]),
    (16, [100, 74, 54, 40, 29, 22, 16, 12, 9, 6, 5, 4, 3, 2, 1]),
]


@pytest.mark.parametrize(("count", "weights"), WEIGHTS, ids=[str(count) for count, _ in WEIGHTS])
def test_weights(count: int, weights: list[int]) -> None:
    assert falling_weights(count) == weights


@pytest.mark.parametrize("count", range(2, 17))
def test_weights_fall_within_what_the_api_admits(count: int) -> None:
    weights = falling_weights(count)
    assert weights == sorted(set(weights), reverse=True)
    assert (weights[0], len(weights)) == (100, count - 1)
    assert weights[-1] >= 1


def accelerator(products: Sequence[str], keys: Sequence[str] = (GPU_LABEL,)) -> Any:
    spec: dict[str, Any] = {"products": list(products), "classLabelKeys": list(keys)}
    return server(accelerator=spec).spec.accelerator


@pytest.mark.parametrize(
    ("products", "pin"), [((), None), (("L4",), None), (THREE, Pin(GPU_LABEL, "L4"))]
)
def test_where_nothing_is_first(products: tuple[str, ...], pin: Pin | None) -> None:
    assert class_preferences(accelerator(products), pin) == []


LABELS = st.dictionaries(st.sampled_from((GPU_LABEL, CLOUD)), st.sampled_from((*THREE, "T4")))


def score(terms: Sequence[dict[str, Any]], labels: dict[str, str]) -> int:
    """As the scheduler adds up the preferred terms that a node meets."""

    def holds(expression: dict[str, Any]) -> bool:
        has = labels.get(expression["key"]) in expression["values"]
        return has is (expression["operator"] == "In")

    return sum(t["weight"] for t in terms if all(map(holds, t["preference"]["matchExpressions"])))


@given(LABELS)
def test_a_node_counts_once_by_the_first_of_its_labels(labels: dict[str, str]) -> None:
    keys = (GPU_LABEL, CLOUD)
    terms = class_preferences(accelerator(THREE, keys), None)
    product = next((labels[key] for key in keys if labels.get(key) in THREE), None)
    expected = {"L4": 100, "A100": 10}.get(str(product), 0)
    assert score(terms, labels) == expected


@given(st.permutations([*THREE, "L40S", "T4"]))
def test_the_order_of_the_list_is_the_order_of_the_nodes(products: list[str]) -> None:
    terms = class_preferences(accelerator(products), None)
    scores = [score(terms, {GPU_LABEL: product}) for product in products]
    assert scores == sorted(set(scores), reverse=True)


def test_the_users_own_terms_stay_before_ours() -> None:
    own = {"weight": 7, "preference": {"matchExpressions": []}}
    ours = class_preferences(accelerator(THREE), None)
    given_ = {"podAffinity": {"x": 1}, "nodeAffinity": {PREFERRED: [own]}}
    before = copy.deepcopy(given_)
    merged = with_node_preferences(given_, ours)
    assert merged["nodeAffinity"][PREFERRED] == [own, *ours]
    assert merged["podAffinity"] == {"x": 1}
    assert given_ == before
    assert with_node_preferences(given_, ()) == given_


def preferred(pod: dict[str, Any]) -> list[int]:
    node_affinity = pod.get("affinity", {}).get("nodeAffinity", {})
    return [term["weight"] for term in node_affinity.get(PREFERRED, ())]


def test_both_kinds_of_pods_prefer_and_a_pinned_server_does_not() -> None:
    asked = server(accelerator={"products": list(THREE)})
    assert preferred(sizing_pod(asked, CONTEXT)["spec"]) == [100, 10]
    free, pinned = (
        deployment(asked, stamp, CONTEXT)["spec"]["template"]["spec"] for stamp in (WRAPPED, STAMP)
    )
    assert preferred(free) == [100, 10]
    assert preferred(pinned) == []


def test_another_order_is_the_same_question_and_another_template_only_where_it_shows() -> None:
    one, other = (server(accelerator={"products": list(order)}) for order in (THREE, THREE[::-1]))
    assert sizing_key(one) == sizing_key(other)
    pinned, free = (
        [deployment(each, stamp, CONTEXT)["spec"]["template"] for each in (one, other)]
        for stamp in (STAMP, WRAPPED)
    )
    assert pinned[0] == pinned[1]
    assert free[0] != free[1]


# -- a number for each ----------------------------------------------------------------------------


def two(*products: str) -> Observed:
    """Two kinds; servers on A100 have half the tokens."""
    return measuring(
        products=products or (PRODUCT, A100), accelerator={"products": [PRODUCT, A100]}
    )


def listed(world: Observed) -> list[tuple[Any, ...]]:
    return [
        (c["product"], c["maxTotalTokenNum"], c["pods"], c["ready"])
        for c in world.status["classes"]
    ]


@pytest.mark.parametrize("order", [(PRODUCT, A100), (A100, PRODUCT)])
def test_the_order_is_that_of_the_products(order: tuple[str, str]) -> None:
    spec: dict[str, Any] = {"accelerator": {"products": [name.replace(" ", "-") for name in order]}}
    found = known(measuring(products=(A100, PRODUCT), **spec))
    assert [c["product"] for c in found.status["classes"]] == list(order)


def test_the_label_decides_the_order_and_is_remembered() -> None:
    spec: dict[str, Any] = {
        "accelerator": {"products": ["big", "small"], "classLabelKeys": [CLOUD]}
    }
    world = measuring(products=(PRODUCT, A100), **spec)
    nodes = kubelets("v1.37.0", "v1.37.0", **{CLOUD: "small"})
    seen = known(replace(world, node=None, landscape=nodes))
    assert [c.get("label") for c in seen.status["classes"]] == [
        {"key": CLOUD, "value": "small"},
        None,
    ]
    later = known(replace(two(A100), raw={**two().raw, "spec": seen.raw["spec"]}))
    assert later.status["classes"]
    blind = replace(seen, landscape=None)
    assert plan(blind, CONTEXT, NOW).status is None


def test_what_an_entry_tells() -> None:
    (first, _) = known(two()).status["classes"]
    assert first == {
        "product": PRODUCT,
        "label": {"key": GPU_LABEL, "value": PRODUCT},
        "totalBytes": DEVICE.total_bytes,
        "driver": REPORT.driver,
        "maxTotalTokenNum": TOKENS,
        "kvCacheBytes": REPORT.budget.kv,
        "pods": 1,
        "ready": 1,
    }


def test_a_kind_that_is_not_used_any_more_keeps_its_number() -> None:
    both = known(said(two(), 1, HALF))
    assert listed(both) == [(PRODUCT, TOKENS, 1, 1), (A100, HALF, 1, 1)]
    alone = known(replace(both, server_pods=both.server_pods[1:]))
    assert listed(alone) == [(PRODUCT, TOKENS, 0, 0), (A100, HALF, 1, 1)]
    assert kinds(replace(alone, server_pods=())) == {A100}
    none = known(replace(both, server_pods=()))
    assert [(product, pods) for product, _, pods, _ in listed(none)] == [(PRODUCT, 0), (A100, 0)]
    assert plan(none, CONTEXT, NOW).status is None


@pytest.mark.parametrize("field", ["source", "sizingKey", "modelDigest", "shrinkSteps"])
def test_an_answer_to_another_question_is_forgotten(field: str) -> None:
    both = known(said(two(), 1, HALF))
    left = replace(both, server_pods=both.server_pods[:1])
    assert left.server is not None
    capacity = both.status["capacity"]
    for now, used in ((capacity, [PRODUCT, A100]), ({**capacity, field: "x"}, [PRODUCT])):
        found = classes(left, left.server, None, now)
        assert [entry["product"] for entry in found] == used


def test_slices_of_one_product_are_two_kinds() -> None:
    world = measuring(products=(PRODUCT, PRODUCT))
    pods = copy.deepcopy(world.server_pods)
    sliced = replace(REPORT, device_class=replace(DEVICE, product=PRODUCT, mig="1g.10gb"))
    end = pods[1]["status"]["initContainerStatuses"][0]["state"]["terminated"]
    end["message"] = message(pods[1], replace(sliced, max_total_token_num=HALF))
    found = replace(world, server_pods=pods)
    assert [(c.get("mig"), c["pods"]) for c in known(found).status["classes"]] == [
        (None, 1),
        ("1g.10gb", 1),
    ]
    assert kinds(found) == {PRODUCT, f"{PRODUCT} 1g.10gb"}


def test_ready_names_each_kind_where_there_are_several() -> None:
    several = text(plan(said(two(PRODUCT, A100, A100), 1, HALF), CONTEXT, NOW), "Ready")
    assert (
        f"{TOKENS} tokens on {PRODUCT} (1 server), {HALF} tokens on {A100} (2 servers)" in several
    )
    assert "by its own GPU" not in text(plan(two(PRODUCT), CONTEXT, NOW), "Ready")


@pytest.mark.parametrize(("products", "said"), [((PRODUCT, A100), True), ((PRODUCT,), False)])
def test_a_stamped_server_says_that_there_is_no_fallback(
    products: tuple[str, ...], *, said: bool
) -> None:
    world = serving(accelerator={"products": list(products)}, sizing={"mode": "Stamped"})
    words = text(plan(world, CONTEXT, NOW), "Sized")
    assert ("Servers stay on GPUs of that kind" in words) is said


def test_nothing_is_written_while_nothing_changes() -> None:
    made = plan(known(two()), CONTEXT, NOW)
    assert (writes(made), made.status) == ([], None)

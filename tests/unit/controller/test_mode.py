"""Who finds the number: every reason of Auto, what is explicit, and how the numbers get there."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.controller.actions import Patch
from plimsoll.controller.objects import Stamp
from plimsoll.controller.objects.context import FILE_KEY_REF, WRAPPER
from plimsoll.controller.objects.names import inputs_hash_of
from plimsoll.controller.observed import observe_from
from plimsoll.controller.plan import Apply, Plan, plan
from plimsoll.controller.steps.capacity import answer_in
from plimsoll.controller.steps.halt import halt_key
from plimsoll.controller.steps.mode import InPod, in_pod
from tests.unit.controller.builders import (
    CONTEXT,
    GPU_LABEL,
    LLAMACPP,
    NOW,
    PRODUCT,
    TOKENS,
    body,
    node,
    server_pod,
)
from tests.unit.controller.inpod_worlds import (
    A100,
    EDITED,
    ONE_POD_VOLUME,
    PATIENCE,
    WRAPPED,
    edit,
    edited,
    known,
    kubelets,
    measuring,
    waiting_pod,
)
from tests.unit.controller.plan_worlds import child, conditions, serving, text, writes

if TYPE_CHECKING:
    from plimsoll.controller.observed import Observed
    from plimsoll.controller.placement import Landscape

TWO_KINDS: dict[str, Any] = {"accelerator": {"products": [PRODUCT, A100]}}
SHARED = {"accelerator": {"memoryBudget": "20Gi"}}
RECREATE = {"rollout": {"strategy": "Recreate"}}
OTHER_IMAGE = {"engine": {"type": "LightLLM", "image": "mirror.example/lightllm:v1.2.0"}}


def chosen(world: Observed) -> InPod | None:
    """The choice in this world."""
    assert world.server is not None
    stored = answer_in(world.server, world.status)
    return in_pod(world, world.server, stored, CONTEXT, NOW)


def new(**spec: Any) -> Observed:
    return observe_from(body(**spec))


def asked(mode: str, world: Observed, **more: Any) -> Observed:
    sizing = {**world.raw["spec"].get("sizing", {}), "mode": mode, **more}
    return edited(world, sizing=sizing)


def without_servers(world: Observed, *, failed: bool = False) -> Observed:
    """The servers are gone, or have ended for good."""
    ended = copy.deepcopy(world.server_pods)
    for pod in ended:
        pod["status"]["phase"] = "Failed"
    return replace(world, server_pods=ended if failed else ())


def nodeless(world: Observed) -> Observed:
    """The servers have no node."""
    waiting = copy.deepcopy(world.server_pods)
    for pod in waiting:
        pod["spec"].pop("nodeName", None)
    return replace(world, server_pods=waiting)


NO_GPU_FREE = "no GPU is free for a sizing pod"
ONE_POD = "the model's volume admits one pod at a time"

ROWS: list[tuple[str, Observed, str | None]] = [
    ("a new server", new(), None),
    ("a new server, mode Stamped", new(sizing={"mode": "Stamped"}), None),
    ("mode Fixed", new(sizing={"mode": "Fixed", "maxTotalTokenNum": 9}), None),
    ("mode Engine", new(sizing={"mode": "Engine"}), None),
    ("mode InPod", new(sizing={"mode": "InPod"}), "spec.sizing.mode says so"),
    ("several kinds asked for", new(**TWO_KINDS), "several kinds of GPU are allowed"),
    ("several kinds, mode Stamped", new(**TWO_KINDS, sizing={"mode": "Stamped"}), None),
    ("one kind asked for", new(accelerator={"products": [PRODUCT]}), None),
    ("shared devices", new(**SHARED), "the devices are shared"),
    ("Recreate", new(**RECREATE), "with strategy Recreate"),
    ("RollingUpdate", new(rollout={"strategy": "RollingUpdate"}), None),
    ("no GPU for some seconds", edit(PATIENCE - 1), None),
    ("no GPU for long", edit(PATIENCE), NO_GPU_FREE),
    ("no GPU for long, mode Stamped", asked("Stamped", edit(PATIENCE)), None),
    ("no GPU, and no server that holds one", without_servers(edit(600)), None),
    ("no GPU, and only servers that wait for one themselves", nodeless(edit(600)), None),
    ("no GPU, and only servers that failed", without_servers(edit(600), failed=True), None),
    ("a volume for one pod", edit(0, ONE_POD_VOLUME), ONE_POD),
    ("a volume that is not bound", edit(600, "0/1 nodes are available: pod has unbound immediate "
                                        "PersistentVolumeClaims."), None),
    ("a scheduling gate", replace(edit(), sizing_pods=()), None),
    ("the pod of another question waits",
     replace(edit(), sizing_pods=(waiting_pod(600, sizing={"extraReserve": "2Gi"}),)), None),
    ("a server with the stamped number", serving(), None),
    ("Recreate, but it serves with a number", edited(serving(), **RECREATE), None),
    ("several kinds, but it serves with a number",
     edited(serving(**TWO_KINDS, sizing={"mode": "Stamped"}), sizing={}), None),
    ("mode InPod, though it serves with a number", asked("InPod", serving()),
     "spec.sizing.mode says so"),
]  # fmt: skip


@pytest.mark.parametrize(("world", "why"), [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
def test_choice(world: Observed, why: str | None) -> None:
    found = chosen(world)
    assert (found is None) is (why is None)
    if found is not None and why is not None:
        assert why in found.why
        assert found.stamp.transport == WRAPPER


def test_a_look_comes_when_the_patience_ends() -> None:
    made = plan(edit(PATIENCE - 1), CONTEXT, NOW)
    assert made.requeue_after is not None
    assert made.requeue_after <= PATIENCE


# -- plans --------------------------------------------------------------------------------------


def applied(made: Plan) -> dict[str, Any]:
    """The one Deployment that is written."""
    (found,) = (
        a.wanted if isinstance(a, Patch) else a.obj
        for a in made.actions
        if isinstance(a, Apply | Patch)
    )
    return found


def server_words(live: dict[str, Any]) -> str:
    (container,) = live["spec"]["template"]["spec"]["containers"]
    return " ".join([*container["command"], *container["args"]])


def test_no_gpu_switches_and_says_why() -> None:
    made = plan(edit(), CONTEXT, NOW)
    assert made.status is not None
    assert "/plimsoll/env" in server_words(applied(made))
    assert any(line.startswith("delete Pod") for line in writes(made))
    assert conditions(made, edit())["Sized"] == ("Unknown", "SizingPending")
    assert NO_GPU_FREE in text(made, "Sized")
    assert made.status["effective"]["mode"] == "InPod"
    assert NO_GPU_FREE in made.status["effective"]["modeReason"]
    assert "SizingModeSwitched" in [event.reason for event in made.events]


def test_the_switch_is_told_once() -> None:
    made = plan(known(edit()), CONTEXT, NOW)
    assert "SizingModeSwitched" not in [event.reason for event in made.events]


def test_a_new_in_pod_server_has_switched_from_nothing() -> None:
    made = plan(new(sizing={"mode": "InPod"}), CONTEXT, NOW)
    assert "SizingModeSwitched" not in [event.reason for event in made.events]
    assert writes(made) == ["apply Service llama", "apply Deployment llama"]


def test_what_the_servers_measured_is_shown() -> None:
    world = measuring(products=(PRODUCT, A100))
    made = plan(world, CONTEXT, NOW)
    assert made.status is not None
    assert made.status["capacity"]["maxTotalTokenNum"] == TOKENS
    assert made.status["capacity"]["source"] == "InPod"
    assert [c["product"] for c in made.status["classes"]] == [A100, PRODUCT]
    assert conditions(made, world)["Sized"] == ("True", "InPod")
    assert f"at least {TOKENS} tokens" in text(made, "Sized")
    assert writes(made) == []


# -- it stays as it began -----------------------------------------------------------------------


def test_it_stays_in_pod_while_nothing_changes() -> None:
    """Auto began so for want of a GPU; that there is one now restarts nothing."""
    world = known(measuring())
    found = chosen(world)
    assert found is not None
    assert found.stamp == WRAPPED
    assert writes(plan(world, CONTEXT, NOW)) == []
    assert writes(plan(edited(world, replicas=2), CONTEXT, NOW)) == ["apply Deployment llama"]
    assert "/plimsoll/env" in server_words(applied(plan(edited(world, replicas=2), CONTEXT, NOW)))


def test_the_transport_stays_too() -> None:
    world = measuring(Stamp(transport=FILE_KEY_REF, remeasures=True))
    for nodes in (None, kubelets("v1.34.0"), kubelets("v1.35.0"), kubelets("v1.37.0")):
        assert writes(plan(replace(world, landscape=nodes), CONTEXT, NOW)) == []
    world = measuring(WRAPPED)
    assert writes(plan(replace(world, landscape=kubelets("v1.37.0")), CONTEXT, NOW)) == []


def test_the_next_change_of_the_template_takes_the_number() -> None:
    world = edited(known(measuring()), **OTHER_IMAGE)
    assert chosen(world) is None
    made = plan(world, CONTEXT, NOW)
    assert f"--max_total_token_num={TOKENS}" in server_words(applied(made))
    assert made.status is not None
    assert made.status["effective"]["mode"] == "Stamped"
    assert "modeReason" not in made.status["effective"]


@pytest.mark.parametrize(("spec", "why"), [
    ({"sizing": {"mode": "InPod"}}, "spec.sizing.mode says so"),
    (RECREATE, "with strategy Recreate"),
])  # fmt: skip
def test_a_reason_that_the_resource_gives_outlives_a_change(spec: dict[str, Any], why: str) -> None:
    world = edited(known(measuring(**spec)), **OTHER_IMAGE)
    found = chosen(world)
    assert found is not None
    assert why in found.why


def test_mode_stamped_takes_the_number_at_once() -> None:
    made = plan(asked("Stamped", known(measuring())), CONTEXT, NOW)
    assert f"--max_total_token_num={TOKENS}" in server_words(applied(made))


def test_a_change_of_the_question_is_measured_beforehand() -> None:
    made = plan(edited(known(measuring()), **EDITED), CONTEXT, NOW)
    assert [line.split("-")[0] for line in writes(made)] == ["create Pod llama"]


def test_the_reason_is_remembered_while_it_holds() -> None:
    world = known(edit())
    live = {**child(), "spec": applied(plan(edit(), CONTEXT, NOW))["spec"]}
    found = chosen(replace(world, deployment=live, server_pods=(server_pod(live),), sizing_pods=()))
    assert found is not None
    assert NO_GPU_FREE in found.why


@pytest.mark.parametrize(("before", "after"), [
    ({"sizing": {"mode": "InPod"}}, {"sizing": {}}),
    (RECREATE, {"rollout": {}}),
])  # fmt: skip
def test_a_reason_that_the_resource_gave_is_not_told_when_it_is_gone(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    found = chosen(edited(known(measuring(**before)), **after))
    assert found is not None
    assert found.why == "they began so and nothing has changed since"


# -- one number cannot be right -----------------------------------------------------------------


def test_servers_on_several_kinds_go_on_measuring() -> None:
    world = edited(known(measuring(products=(PRODUCT, A100))), **OTHER_IMAGE)
    found = chosen(world)
    assert found is not None
    assert "several kinds of GPU" in found.why
    # The template is the new one then, and what was found must not be lost with the old pods.
    gone = replace(world, server_pods=())
    assert chosen(gone) is not None
    silent = edited(world)
    silent = replace(silent, raw={**silent.raw, "status": {**world.status, "classes": []}})
    assert chosen(silent) is not None
    assert chosen(replace(silent, server_pods=())) is None


def test_servers_with_a_number_of_a_sizing_pod_are_stamped_whatever_they_met() -> None:
    """In the middle of a move from one kind to another there are servers on both."""
    world = serving(replicas=2)
    status = {**world.status, "classes": [{"product": PRODUCT}, {"product": A100}]}
    world = replace(world, raw={**world.raw, "status": status})
    assert chosen(edited(world, **OTHER_IMAGE)) is None


def test_servers_on_one_kind_get_the_number() -> None:
    assert chosen(edited(known(measuring(products=(A100, A100))), **OTHER_IMAGE)) is None


def test_a_number_that_nothing_keeps_in_its_place_is_not_stamped() -> None:
    """Without a label the number would be tied to one node, which two servers cannot share."""
    world = replace(measuring(products=(PRODUCT, PRODUCT)), node=node("n0", product=""))
    world = edited(known(world), **OTHER_IMAGE)
    found = chosen(world)
    assert found is not None
    assert "no label of the node" in found.why
    # The node has its label now.
    assert chosen(replace(world, node=node("n0", **{GPU_LABEL: PRODUCT}))) is None


# -- what was given up --------------------------------------------------------------------------


def given_up(world: Observed, stamp: Stamp) -> Observed:
    """The InPod template of these inputs crashed, and that of an older resource went on."""
    assert world.server is not None
    template = measuring(stamp, **world.raw["spec"]).deployment
    assert template is not None
    key = halt_key(world.server, str(inputs_hash_of(template["spec"]["template"])))
    halted = {"reason": "OutOfMemoryBackoff", "message": "It ran out of memory.", "since": ""}
    status = {**world.status, "rollout": {"inputsHash": key, "halted": halted}}
    return replace(world, raw={**world.raw, "status": status})


@pytest.mark.parametrize("transport", [FILE_KEY_REF, WRAPPER])
@pytest.mark.parametrize("stored", [True, False])
def test_what_was_given_up_is_not_tried_another_way(transport: str, *, stored: bool) -> None:
    """Neither with its number in the template, nor by the other transport, nor a new sizing pod."""
    stamp = Stamp(transport=transport)
    known_number = known(measuring(sizing=EDITED["sizing"])).status if stored else {}
    world = replace(edit(), sizing_pods=())
    status = {**known_number, "observedGeneration": 2}
    world = given_up(replace(world, raw={**world.raw, "status": status}), stamp)
    found = chosen(world)
    assert found is not None
    assert found.stamp == stamp
    made = plan(world, CONTEXT, NOW)
    assert writes(made) == []
    assert conditions(made, world)["Degraded"] == ("True", "OutOfMemoryBackoff")
    again = plan(replace(world, raw={**world.raw, "status": made.status}), CONTEXT, NOW)
    assert (again.status, again.actions) == (None, ())


def test_an_edit_lifts_it() -> None:
    world = edited(given_up(edit(), WRAPPED), sizing={"extraReserve": "3Gi"})
    assert chosen(world) is None


# -- how the numbers get there ------------------------------------------------------------------

TRANSPORTS: list[tuple[str, Landscape | None, str, bool | None]] = [
    ("nodes unknown", None, WRAPPER, None),
    ("no node", kubelets(), WRAPPER, None),
    ("1.34", kubelets("v1.34.9"), WRAPPER, None),
    ("1.35", kubelets("v1.35.0"), FILE_KEY_REF, None),
    ("1.36", kubelets("v1.36.0-rc.1"), FILE_KEY_REF, True),
    ("1.37", kubelets("v1.37.2+k3s1"), FILE_KEY_REF, True),
    ("one old among new", kubelets("v1.37.2", "v1.34.0"), WRAPPER, None),
    ("one without remeasuring", kubelets("v1.37.2", "v1.35.0"), FILE_KEY_REF, None),
    ("a version that says nothing", kubelets("v1.37.2", "unknown"), WRAPPER, None),
]


@pytest.mark.parametrize(
    ("nodes", "transport", "again"), [r[1:] for r in TRANSPORTS], ids=[r[0] for r in TRANSPORTS]
)
def test_transport(nodes: Landscape | None, transport: str, *, again: bool | None) -> None:
    found = chosen(replace(new(sizing={"mode": "InPod"}), landscape=nodes))
    assert found is not None
    assert (found.stamp.transport, found.stamp.remeasures) == (transport, again)


@pytest.mark.parametrize("where", [
    {"template": {"nodeSelector": {"pool": "new"}}},
    {"accelerator": {"products": [A100]}},
])  # fmt: skip
def test_nodes_that_never_get_a_server_do_not_matter(where: dict[str, Any]) -> None:
    nodes = kubelets("v1.37.0", "v1.30.0", pool="new", product=A100)
    found = chosen(replace(new(sizing={"mode": "InPod"}, **where), landscape=nodes))
    assert found is not None
    assert found.stamp.transport == FILE_KEY_REF


MODEL = {"source": {"persistentVolumeClaim": {"claimName": "models"}}, "file": "a.gguf"}
FOLDER = {"source": {"persistentVolumeClaim": {"claimName": "models", "subPath": "llama"}}}
IMPOSSIBLE: list[tuple[str, dict[str, Any], Landscape | None, str | None]] = [
    ("no file", {"engine": {**LLAMACPP, "command": ["llama-server"]}, "model": FOLDER},
     kubelets("v1.37.0"), "set spec.model.file"),
    ("no command, old kubelet", {"engine": LLAMACPP, "model": MODEL}, kubelets("v1.34.0"),
     "set spec.engine.command"),
    ("no command, nodes unknown", {"engine": LLAMACPP, "model": MODEL}, None,
     "set spec.engine.command"),
    ("no command, new kubelet", {"engine": LLAMACPP, "model": MODEL}, kubelets("v1.35.0"), None),
    ("a command", {"engine": {**LLAMACPP, "command": ["llama-server"]}, "model": MODEL}, None,
     None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "nodes", "says"), [r[1:] for r in IMPOSSIBLE], ids=[r[0] for r in IMPOSSIBLE]
)
def test_what_cannot_be_started(
    spec: dict[str, Any], nodes: Landscape | None, says: str | None
) -> None:
    world = replace(new(**spec, sizing={"mode": "InPod"}), landscape=nodes)
    made = plan(world, CONTEXT, NOW)
    if says is None:
        assert writes(made) == ["apply Service llama", "apply Deployment llama"]
        return
    assert writes(made) == []
    assert conditions(made, world)["Sized"] == ("False", "InPodImpossible")
    assert conditions(made, world)["Stalled"] == ("True", "InPodImpossible")
    assert says in text(made, "Sized")


def test_auto_measures_beforehand_where_it_must() -> None:
    world = new(engine=LLAMACPP, model=FOLDER, **TWO_KINDS)
    assert chosen(world) is None
    assert [line.split("-")[0] for line in writes(plan(world, CONTEXT, NOW))] == [
        "create Pod llama"
    ]

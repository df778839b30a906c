"""What the scheduler charges a pod, and what a node has to give, as whole numbers.

CPUs are millicores, memory is bytes, devices are pieces; every pod also costs one of ``pods``.
The rules are those of ``k8s.io/component-helpers/resource`` (PodRequests): containers run
together, so they add up; init containers run one after the other before them, so only the largest
counts; an init container with ``restartPolicy: Always`` stays and adds to all that come after it.

An amount that cannot be read errs to the safe side: a pod holds everything, a node has nothing.
A resize of a running pod that is under way counts by its spec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from sys import intern
from typing import Any, Final

from plimsoll.core.units import MAX_AMOUNT, parse_quantity

CPU: Final = "cpu"
MEMORY: Final = "memory"
PODS: Final = "pods"

MILLICORES: Final = 1000
_POD_LEVEL: Final = (CPU, MEMORY, "hugepages-")

Amounts = dict[str, int]


def is_device(name: str) -> bool:
    """Whether a resource is an extended one, as GPUs are: neither native nor Kubernetes' own."""
    return "/" in name and "kubernetes.io/" not in name


def amounts(quantities: object, *, unreadable: int) -> Amounts:
    """Quantities by resource name, as whole numbers.

    Args:
        quantities: a ``requests``, ``limits``, ``allocatable`` or ``overhead`` of the API.
        unreadable: what stands for a quantity that is none.
    """
    return {
        # The same few names come with thousands of pods.
        intern(str(name)): _amount(str(name), text, unreadable)
        for name, text in mapping(quantities).items()
    }


def pod_charge(spec: Mapping[str, Any]) -> Amounts:
    """What a pod of this spec takes from its node.

    Args:
        spec: of a Pod or of a pod template. There a limit without a request stands for the
            request, as the API server writes it into pods.
    """
    running: Amounts = {}
    for container in mappings(spec.get("containers")):
        _add(running, _requests(container))
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in mappings(spec.get("initContainers")):
        now = dict(sidecars)
        _add(now, _requests(container))
        if container.get("restartPolicy") == "Always":
            sidecars = now
        _raise_to(peak, now)
    _add(running, sidecars)
    _raise_to(running, peak)
    whole = mapping(mapping(spec.get("resources")).get("requests"))
    for name, amount in amounts(whole, unreadable=MAX_AMOUNT).items():
        if name.startswith(_POD_LEVEL):
            running[name] = amount
    _add(running, amounts(spec.get("overhead"), unreadable=MAX_AMOUNT))
    running[PODS] = 1
    return {name: amount for name, amount in running.items() if amount > 0}


def mapping(value: object) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one: users' scheduling terms come unchecked."""
    return value if isinstance(value, Mapping) else {}


def mappings(value: object) -> list[Mapping[str, Any]]:
    """The objects in a list, none where the value is no list."""
    items = value if isinstance(value, Sequence) else ()
    return [item for item in items if isinstance(item, Mapping)]


def _requests(container: Mapping[str, Any]) -> Amounts:
    resources = mapping(container.get("resources"))
    asked = {**mapping(resources.get("limits")), **mapping(resources.get("requests"))}
    return amounts(asked, unreadable=MAX_AMOUNT)


def _amount(name: str, text: str | int, unreadable: int) -> int:
    try:
        return parse_quantity(text, parts=MILLICORES if name == CPU else 1)
    except ValueError:
        return unreadable


def _add(total: Amounts, more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _raise_to(total: Amounts, least: Mapping[str, int]) -> None:
    for name, amount in least.items():
        total[name] = max(total.get(name, 0), amount)

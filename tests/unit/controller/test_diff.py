"""first_difference: what counts, what does not, and the sentence that people read."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.controller.objects import Pin, Stamp, diff
from plimsoll.controller.objects.diff import first_difference
from plimsoll.controller.objects.workload import deployment
from tests.unit.controller.builders import CONTEXT, server, stored

SAME: list[tuple[str, Any, Any]] = [
    ("defaults of the server", {"spec": {"a": 1}}, {"spec": {"a": 1, "b": 2}, "status": {}}),
    ("foreign label", {"labels": {"a": "1"}}, {"labels": {"a": "1", "b": "2"}}),
    ("nothing wanted", {"a": None, "b": {}, "c": [], "d": ""}, {"b": {"x": 1}, "c": [1]}),
    ("equal quantities", {"requests": {"cpu": "0.1"}}, {"requests": {"cpu": "100m"}}),
    ("equal sizes", {"emptyDir": {"sizeLimit": "1024Mi"}}, {"emptyDir": {"sizeLimit": "1Gi"}}),
    ("exponent", {"limits": {"x": "2e3"}}, {"limits": {"x": "2k"}}),
    ("count as a number", {"limits": {"nvidia.com/gpu": 1}}, {"limits": {"nvidia.com/gpu": "1"}}),
    (
        "order of a list map",
        {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
        {"env": [{"name": "B", "value": "2"}, {"name": "X"}, {"name": "A", "value": "1"}]},
    ),
    (
        "mounts of one volume at two places",
        {"volumeMounts": [{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/b"}]},
        {"volumeMounts": [{"name": "v", "mountPath": "/b"}, {"name": "v", "mountPath": "/a"}]},
    ),
]  # fmt: skip

DIFFERENT: list[tuple[Any, Any, str]] = [
    ({"replicas": 1}, {"replicas": 2}, "replicas: 2 is not 1"),
    ({"replicas": 0}, {"replicas": 1}, "replicas: 1 is not 0"),
    ({"a": True}, {"a": 1}, "a: 1 is not true"),
    ({"a": "1"}, {"a": 1}, 'a: 1 is not "1"'),
    ({"a": {"b": 1}}, {}, 'a: missing, wanted {"b": 1}'),
    ({"a": {"b": 1}}, {"a": 5}, 'a: 5 is not {"b": 1}'),
    ({"requests": {"cpu": "100m"}}, {"requests": {"cpu": "200m"}}, 'requests.cpu: "200m" is not "100m"'),
    ({"x": {"sizeLimit": "1Gi"}}, {"x": {"sizeLimit": "2Gi"}}, 'x.sizeLimit: "2Gi" is not "1Gi"'),
    ({"args": ["a", "b"]}, {"args": ["b", "a"]}, 'args[0]: "b" is not "a"'),
    ({"args": ["a"]}, {"args": ["a", "--evil"]}, 'args[1]: "--evil" is there and not wanted'),
    ({"args": ["a", "b"]}, {"args": ["a"]}, 'args[1]: missing, wanted "b"'),
    ({"args": ["a"]}, {"args": "a"}, 'args: "a" is not ["a"]'),
    (
        {"containers": [{"name": "server", "args": ["--ctx-size=24576"]}]},
        {"containers": [{"name": "sidecar"}, {"name": "server", "args": ["--ctx-size=5"]}]},
        'containers[server].args[0]: "--ctx-size=5" is not "--ctx-size=24576"',
    ),
    (
        {"containers": [{"name": "server"}]},
        {"containers": []},
        'containers[server]: missing, wanted {"name": "server"}',
    ),
    ({"labels": {"a.b/c": "1"}}, {"labels": {"a.b/c": "2"}}, 'labels[a.b/c]: "2" is not "1"'),
    (
        {"env": [{"name": "TOKEN", "value": "secret"}]},
        {"env": [{"name": "TOKEN", "value": "other"}]},
        "env[TOKEN].value: (a value that is not shown) is not (a value that is not shown)",
    ),
    ({"tolerations": [{"key": "a"}]}, {"tolerations": []}, 'tolerations[0]: missing, wanted {"key": "a"}'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("desired", "live"), [row[1:] for row in SAME], ids=[row[0] for row in SAME]
)
def test_same(desired: Any, live: Any) -> None:
    assert first_difference(desired, live) is None


@pytest.mark.parametrize(("desired", "live", "text"), DIFFERENT)
def test_different(desired: Any, live: Any, text: str) -> None:
    # The environment is known by its path inside a container.
    if "env" in desired:
        desired, live, text = {"c": desired}, {"c": live}, f"c.{text}"
    assert first_difference(desired, live) == text


def test_long_values_are_cut() -> None:
    text = first_difference({"a": "x" * 500}, {"a": "y"})
    assert text is not None
    assert text.startswith('a: "y" is not "xxx')
    assert len(text) < 200


def test_a_stored_deployment_equals_its_own_rendering() -> None:
    """Defaults, foreign annotations and the status are no difference: nothing would ever settle."""
    wanted = deployment(server(), Stamp(1000, pin=Pin("k", "v")), CONTEXT)
    assert first_difference(wanted, stored(wanted)) is None


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [p for key, item in value.items() for p in _paths(item, (*path, key))]
    if isinstance(value, list):
        return [p for i, item in enumerate(value) for p in _paths(item, (*path, i))]
    return [path]


def test_every_single_field_of_a_deployment_is_guarded() -> None:
    """Whatever leaf of the rendered object somebody changes or removes, it is noticed."""
    wanted = deployment(server(), Stamp(1000, pin=Pin("k", "v")), CONTEXT)
    paths = _paths(wanted)
    assert len(paths) > 100
    for path in paths:
        live = stored(wanted)
        spot = live
        for key in path[:-1]:
            spot = spot[key]
        spot[path[-1]] = "tampered" if not isinstance(spot[path[-1]], str) else spot[path[-1]] + "x"
        assert first_difference(wanted, live) is not None, path
        removed = copy.deepcopy(stored(wanted))
        spot = removed
        for key in path[:-1]:
            spot = spot[key]
        del spot[path[-1]]
        assert first_difference(wanted, removed) is not None, path


_FIELDS = st.sampled_from(("env", "containers", "args", "limits", "cpu", "sizeLimit", "name", "x"))
_SCALARS = st.sampled_from((None, "", "a", "1", "1000m", 0, 1, 1.0, True, False))
_JSON = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.dictionaries(_FIELDS, inner, max_size=3),
        st.lists(inner, max_size=3),
        st.lists(st.fixed_dictionaries({"name": st.sampled_from("ab")}, optional={"x": inner})),
    ),
    max_leaves=12,
)


@given(desired=_JSON, live=_JSON, same=st.booleans())
def test_the_quick_comparison_and_the_worded_one_agree(
    desired: object, live: object, *, same: bool
) -> None:
    live = copy.deepcopy(desired) if same else live
    try:
        worded = diff._difference("", "", desired, live)
    except (KeyError, TypeError):  # an item of a list map without identity: no builder renders one
        return
    assert diff.covers(desired, live) == (worded is None)

"""Each kind of breaking change is refused, each kind of addition is not."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.release.compatibility import findings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Change = Callable[[dict[str, Any]], object]

ROOT = Path(__file__).resolve().parents[3]
SPEC: dict[str, Any] = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 1, "maximum": 9, "default": 3},
        "mode": {"type": "string", "enum": ["A", "B"], "nullable": True},
        "name": {"type": "string", "pattern": "^a", "maxLength": 5, "minLength": 2},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
        "map": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "x-kubernetes-validations": [{"rule": "self.size > 1", "message": "m"}],
}


def definition() -> dict[str, Any]:
    return {
        "spec": {
            "group": "g",
            "scope": "Namespaced",
            "names": {"kind": "K", "plural": "ks", "shortNames": ["k"]},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "selectableFields": [{"jsonPath": ".spec.mode"}],
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "properties": {"spec": copy.deepcopy(SPEC)},
                        }
                    },
                }
            ],
        }
    }


def version(crd: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = crd["spec"]["versions"][0]
    return found


def spec(crd: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = version(crd)["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def field(crd: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = spec(crd)["properties"][name]
    return found


RULES = "x-kubernetes-validations"
BREAKING: dict[str, tuple[Change, str]] = {
    "version gone": (lambda c: version(c).update(name="v2"), "v1: the version is gone"),
    "not served": (lambda c: version(c).update(served=False), "v1: no longer served"),
    "not stored": (lambda c: version(c).update(storage=False), "v1: no longer storage"),
    "group": (lambda c: c["spec"].update(group="h"), "group: g became h"),
    "scope": (lambda c: c["spec"].update(scope="Cluster"), "scope: Namespaced became Cluster"),
    "kind": (lambda c: c["spec"]["names"].update(kind="L"), "names.kind: K became L"),
    "short name": (lambda c: c["spec"]["names"].pop("shortNames"), "names.shortNames: k is gone"),
    "subresource": (
        lambda c: version(c).pop("subresources"),
        "v1: the subresource status is gone or another one",
    ),
    "selectable": (
        lambda c: version(c).pop("selectableFields"),
        "v1: .spec.mode can no longer be selected by",
    ),
    "field gone": (lambda c: spec(c)["properties"].pop("tags"), "v1.spec.tags: the field is gone"),
    "required": (lambda c: spec(c)["required"].append("mode"), "v1.spec.mode: is now required"),
    "type": (
        lambda c: field(c, "size").update(type="string"),
        'v1.spec.size: type was "integer" and is "string"',
    ),
    "type of items": (
        lambda c: field(c, "tags")["items"].update(type="integer"),
        'v1.spec.tags[]: type was "string" and is "integer"',
    ),
    "type of values": (
        lambda c: field(c, "map")["additionalProperties"].update(type="integer"),
        'v1.spec.map.*: type was "string" and is "integer"',
    ),
    "values gone": (
        lambda c: field(c, "map").pop("additionalProperties"),
        "v1.spec.map.*: is gone or another one",
    ),
    "enum value": (
        lambda c: field(c, "mode")["enum"].remove("A"),
        "v1.spec.mode: the value A is gone",
    ),
    "new enum": (
        lambda c: field(c, "name").update(enum=["x"]),
        "v1.spec.name: any value was allowed, now only x",
    ),
    "null": (lambda c: field(c, "mode").pop("nullable"), "v1.spec.mode: null is no longer allowed"),
    "pattern": (
        lambda c: field(c, "name").update(pattern="^b"),
        'v1.spec.name: pattern was "^a" and is "^b"',
    ),
    "lower bound": (
        lambda c: field(c, "size").update(minimum=2),
        "v1.spec.size: minimum was 1 and is 2",
    ),
    "upper bound": (
        lambda c: field(c, "name").update(maxLength=4),
        "v1.spec.name: maxLength was 5 and is 4",
    ),
    "new bound": (
        lambda c: field(c, "map").update(maxProperties=4),
        "v1.spec.map: maxProperties was not set and is 4",
    ),
    "default": (
        lambda c: field(c, "size").update(default=4),
        "v1.spec.size: the default was 3 and is 4",
    ),
    "default gone": (
        lambda c: field(c, "size").pop("default"),
        "v1.spec.size: the default was 3 and is not set",
    ),
    "default that is new": (
        lambda c: field(c, "name").update(default="ab"),
        'v1.spec.name: the default was not set and is "ab"',
    ),
    "field with a default": (
        lambda c: spec(c)["properties"].update(more={"type": "string", "default": "x"}),
        "v1.spec.more: a new field with a default",
    ),
    "list type": (
        lambda c: field(c, "tags").update({"x-kubernetes-list-type": "set"}),
        'v1.spec.tags: x-kubernetes-list-type was not set and is "set"',
    ),
    "rule": (
        lambda c: spec(c)[RULES].append({"rule": "self.size > 2"}),
        "v1.spec: a new rule: self.size > 2",
    ),
}


@pytest.mark.parametrize("name", BREAKING)
def test_what_takes_away_is_named(name: str) -> None:
    change, words = BREAKING[name]
    new = definition()
    change(new)
    assert findings(definition(), new) == [words]


ADDITIONS: dict[str, Change] = {
    "field": lambda c: spec(c)["properties"].update(more={"type": "string"}),
    "object with a default inside": lambda c: spec(c)["properties"].update(
        more={"type": "object", "properties": {"x": {"type": "integer", "default": 1}}}
    ),
    "enum value": lambda c: field(c, "mode")["enum"].append("C"),
    "no enum": lambda c: field(c, "mode").pop("enum"),
    "looser bounds": lambda c: (
        field(c, "size").update(minimum=0, maximum=10),
        field(c, "tags").pop("maxItems"),
        field(c, "name").pop("minLength"),
    ),
    "not required": lambda c: spec(c)["required"].clear(),
    "words": lambda c: (
        field(c, "size").update(description="d"),
        spec(c)[RULES][0].update(message="other words"),
    ),
    "rule gone": lambda c: spec(c)[RULES].clear(),
    "rule on a new field": lambda c: (
        spec(c)["properties"].update(more={"type": "integer"}),
        spec(c)[RULES].append({"rule": "!has(self.more) || self.more > self.size"}),
    ),
    "version": lambda c: c["spec"]["versions"].append({"name": "v2"}),
    "column": lambda c: version(c).update(additionalPrinterColumns=[]),
    "short name": lambda c: c["spec"]["names"]["shortNames"].append("kk"),
}


@pytest.mark.parametrize("name", ADDITIONS)
def test_additions_are_none(name: str) -> None:
    new = definition()
    ADDITIONS[name](new)
    assert new != definition()
    assert findings(definition(), new) == []


def places(at: str, schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Every field below a schema: its place, the fields it is among, its name."""
    for name, child in schema.get("properties", {}).items():
        yield f"{at}.{name}", schema["properties"], name
        yield from places(f"{at}.{name}", child)
    for word, suffix in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(schema.get(word), dict):
            yield from places(at + suffix, schema[word])


def test_every_field_of_the_projects_own_definition_is_compared() -> None:
    documents = yaml.safe_load_all((ROOT / "manifests" / "install.yaml").read_text())
    (crd,) = [item for item in documents if item["kind"] == "CustomResourceDefinition"]
    assert findings(crd, crd) == []
    new = json.loads(json.dumps(crd))  # anchors become copies
    (one,) = new["spec"]["versions"]
    seen = list(places(one["name"], one["schema"]["openAPIV3Schema"]))
    assert len(seen) > 300
    for at, siblings, name in seen:
        taken = siblings.pop(name)
        assert findings(crd, new) == [f"{at}: the field is gone"]
        siblings[name] = taken

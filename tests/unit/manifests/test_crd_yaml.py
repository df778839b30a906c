"""The definition's form: bounds, defaults, and that it says the same as the reader."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.controller import crd as reader
from plimsoll.controller.crd import InvalidSpec, fits, parse, rollout, sizing
from plimsoll.core import dtypes, engines
from plimsoll.core.engines.base import Pinned
from plimsoll.core.request import SizingRequest
from tests.unit.manifests.rules import RULES, case
from tests.unit.manifests.samples import (
    IN_BYTES,
    crd,
    full,
    minimal,
    not_in_schema,
    put,
    schema,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SPEC = schema()["properties"]["spec"]
FIELDS = dict(walk(SPEC, "spec"))
# Scheduling terms are checked by the reader down to their first level only (see parse_template).
OPAQUE = (
    "spec.template.affinity.",
    "spec.template.topologySpreadConstraints[0].",
    "spec.template.tolerations[0].",
)


def test_names() -> None:
    spec = crd()["spec"]
    assert crd()["metadata"]["name"] == f"{reader.PLURAL}.{reader.GROUP}"
    assert (spec["group"], spec["scope"], spec["names"]["kind"]) == (
        reader.GROUP,
        "Namespaced",
        reader.KIND,
    )
    assert (spec["names"]["plural"], spec["names"]["shortNames"]) == (reader.PLURAL, ["isrv"])
    assert spec["names"]["categories"] == ["inference"]
    assert [version["name"] for version in spec["versions"]] == [reader.VERSION]


def test_every_list_map_and_text_of_the_spec_is_bounded() -> None:
    unbounded = []
    for path, node in FIELDS.items():
        text = node.get("type") == "string" and "enum" not in node
        needs = {
            "maxItems": node.get("type") == "array",
            "maxProperties": "additionalProperties" in node,
            "maxLength": text or "x-kubernetes-int-or-string" in node,
        }
        unbounded += [
            f"{path}: {bound}" for bound, needed in needs.items() if needed and bound not in node
        ]
    assert unbounded == []


def test_every_list_says_how_it_merges() -> None:
    lists = {path: node for path, node in walk(schema()) if node.get("type") == "array"}
    assert [path for path, node in lists.items() if "x-kubernetes-list-type" not in node] == []


def test_defaults_are_the_documented_ones_and_reachable() -> None:
    defaults = {path: node["default"] for path, node in FIELDS.items() if "default" in node}
    assert {path: value for path, value in defaults.items() if value != {}} == {
        "spec.model.mountPath": "/models",
        "spec.engine.imagePullPolicy": "IfNotPresent",
        "spec.accelerator.resource": "nvidia.com/gpu",
        "spec.accelerator.count": 1,
        "spec.accelerator.classLabelKeys": ["nvidia.com/gpu.product"],
        "spec.replicas": 1,
        "spec.sizing.cudaGraphs.enabled": True,
        "spec.sizing.kvCacheDType": "auto",
        "spec.sizing.extraReserve": 0,
        "spec.rollout.drainSeconds": 300,
        "spec.service.port": 80,
        "spec.service.type": "ClusterIP",
        "spec.template.sharedMemory.sizeLimit": "2Gi",
    }
    required = {"spec", "spec.model", "spec.engine"}
    for path in defaults:
        parents = {path.rsplit(".", depth)[0] for depth in range(1, path.count(".") + 1)}
        assert [p for p in parents if p not in required and defaults.get(p) != {}] == [], path


def test_the_reader_fills_in_the_same_defaults() -> None:
    body = minimal()
    for path, node in FIELDS.items():
        if "default" in node and node["default"] != {}:
            put(body, path, node["default"])
    assert parse(body) == parse(minimal())


def test_full_sample_covers_the_whole_spec() -> None:
    for body in (full(), full(IN_BYTES)):
        assert not_in_schema(body["spec"], SPEC) == []
        parse(body)
    assert [path for path in FIELDS if _at(full(path), _sampled(path)) is None] == []


def _at(body: Any, path: str) -> Any:
    """The value at a path of the schema, None where there is none."""
    for part in path.replace("[", ".[").split("."):
        if part.startswith("["):
            items = list(body.values() if isinstance(body, dict) else body)
            body = items[0 if part == "[*]" else int(part[1:-1])] if items else None
        else:
            body = body.get(part)
        if body is None:
            return None
    return body


def _sampled(path: str) -> str:
    """Where the full sample has the field: its first environment entry has a value, its second a reference."""
    return path.replace("spec.engine.env[0].valueFrom", "spec.engine.env[1].valueFrom")


def test_enums_are_the_readers() -> None:
    assert FIELDS["spec.engine.type"]["enum"] == list(reader.KV_CACHE_DTYPES)
    assert FIELDS["spec.sizing.mode"]["enum"] == list(sizing.MODES)
    assert FIELDS["spec.sizing.probe"]["enum"] == list(sizing.PROBES)
    assert FIELDS["spec.sizing.stateDType"]["enum"] == list(sizing.STATE_DTYPES)
    assert FIELDS["spec.sizing.onOutOfMemory.action"]["enum"] == list(sizing.OUT_OF_MEMORY_ACTIONS)
    assert FIELDS["spec.rollout.strategy"]["enum"] == list(rollout.STRATEGIES)
    assert FIELDS["spec.rollout.updatePolicy"]["enum"] == list(rollout.UPDATE_POLICIES)
    assert set(FIELDS["spec.sizing.kvCacheDType"]["enum"]) == {
        name for names in reader.KV_CACHE_DTYPES.values() for name in names
    }
    assert FIELDS["spec.engine.imagePullPolicy"]["enum"] == list(reader.PULL_POLICIES)
    assert FIELDS["spec.service.type"]["enum"] == list(reader.SERVICE_TYPES)


@pytest.mark.parametrize("engine", reader.KV_CACHE_DTYPES)
def test_what_the_reader_says_of_an_engine_is_what_the_engine_says(engine: str) -> None:
    row = engines.lookup(engine)
    offered = set(reader.KV_CACHE_DTYPES[engine])
    assert offered == {name for name in row.kv_dtypes if name == "auto" or name in dtypes.SIZES}
    assert (engine in fits.ONE_FILE) == (row.formats == {"gguf"})


@pytest.mark.parametrize("engine", reader.KV_CACHE_DTYPES)
def test_the_rule_names_the_engines_cache_dtypes(engine: str) -> None:
    (rule,) = [
        r for r in SPEC["x-kubernetes-validations"] if r["fieldPath"] == ".sizing.kvCacheDType"
    ]
    assert f"{engine} knows {', '.join(reader.KV_CACHE_DTYPES[engine])}" in rule["message"]
    assert f"'{engine}': {list(reader.KV_CACHE_DTYPES[engine])}" in rule["rule"]


def _beyond() -> list[tuple[str, object]]:
    """For every bound of the schema one value just outside it."""
    outside: dict[str, Callable[[Any, Any], object]] = {
        "minimum": lambda bound, _: bound - 1,
        "maximum": lambda bound, _: bound + 1,
        "enum": lambda *_: "Another",
        "minLength": lambda *_: "",
        "maxLength": lambda bound, _: "a" * (bound + 1),
        "maxItems": lambda bound, sample: [sample[0]] * (bound + 1),
    }
    found: list[tuple[str, object]] = []
    for path, node in FIELDS.items():
        if path.startswith(OPAQUE) or "[*]" in path:
            continue
        where = _sampled(path)
        found += [
            (where, make(node[key], _at(full(path), where)))
            for key, make in outside.items()
            if key in node
        ]
        if node.get("type") == "object" and path != "spec":
            found.append((where, "text"))
            if "additionalProperties" not in node:
                found.append((f"{where}.unknownField", 1))
    return found


@pytest.mark.parametrize(("path", "value"), _beyond())
def test_the_reader_refuses_what_is_beyond_a_bound_of_the_schema(path: str, value: object) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse(put(full(path), path, value))
    # A whole list or object may be reported at the item that is wrong first.
    assert str(caught.value.field).startswith(path)


@pytest.mark.parametrize(
    "path", [p for p, node in FIELDS.items() if "maximum" in node and not p.startswith(OPAQUE)]
)
def test_the_reader_admits_the_bounds_themselves(path: str) -> None:
    node = FIELDS[path]
    for value in (node["minimum"], node["maximum"]):
        body = put(full(), path, value)
        if path in {"spec.accelerator.count", "spec.parallelism.tensor"}:
            put(put(body, "spec.accelerator.count", value), "spec.parallelism.tensor", value)
        if path == "spec.sizing.maxTotalTokenNum":
            put(body, "spec.sizing.minTotalTokenNum", 1)
        if path == "spec.sizing.minTotalTokenNum":
            put(body, "spec.sizing.maxTotalTokenNum", node["maximum"])
        parse(body)


def test_printer_columns_point_into_the_schema() -> None:
    (version,) = crd()["spec"]["versions"]
    known = {path for path, _ in walk(schema())}
    columns = {column["name"]: column for column in version["additionalPrinterColumns"]}
    assert list(columns) == [
        "Ready", "Status", "Model", "Engine", "Tokens", "Ctx", "GPU", "Age", "Source", "Drift", "Message",
    ]  # fmt: skip
    for column in columns.values():
        path = column["jsonPath"].removeprefix(".").replace('[?(@.type=="Ready")]', "[0]")
        assert path in known or path == "metadata.creationTimestamp", path
    assert [name for name, column in columns.items() if column.get("priority")] == [
        "Source",
        "Drift",
        "Message",
    ]


def test_scale_points_into_the_schema() -> None:
    (version,) = crd()["spec"]["versions"]
    known = {path for path, _ in walk(schema())}
    assert {path.removeprefix(".") for path in version["subresources"]["scale"].values()} <= known


def test_every_rule_has_a_message() -> None:
    rules = [
        rule for _, node in walk(schema()) for rule in node.get("x-kubernetes-validations", ())
    ]
    assert len(rules) > 20
    assert [rule["rule"] for rule in rules if not rule.get("message")] == []


def test_every_rule_of_the_schema_has_its_case() -> None:
    written = {
        rule["message"]
        for _, node in walk(schema())
        for rule in node.get("x-kubernetes-validations", ())
    }
    assert written == {message for *_, message in RULES}


@pytest.mark.parametrize(("engine", "path", "value", "field"), [row[:4] for row in RULES])
def test_the_reader_refuses_the_same_field_as_the_rule(
    engine: str, path: str, value: object, field: str
) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse(case(engine, path, value))
    # A rule over a whole map names the map, the reader the entry.
    assert str(caught.value.field).partition("[")[0] == field.partition("[")[0]


TOLD: dict[str, tuple[frozenset[str], dict[str, Any], dict[str, Any]]] = {
    # the reader's table, and what is asked and pinned where the value is given
    "tokens": (fits.TAKES_TOKENS, {}, {"max_total_token_num": 4711}),
    "bytes": (fits.TAKES_BYTES, {}, {"kv_cache_bytes": 4711}),
    "states": (fits.TAKES_STATE_DTYPE, {"state_dtype": "bf16"}, {"state_dtype": "bf16"}),
    "prefixes": (fits.TAKES_PREFIX_CACHING, {"prefix_caching": False}, {}),
}


@pytest.mark.parametrize("engine", reader.KV_CACHE_DTYPES)
@pytest.mark.parametrize("value", TOLD)
def test_the_reader_knows_what_an_engine_is_told(value: str, engine: str) -> None:
    """A value is for exactly those engines whose arguments or environment change with it."""
    table, asked, given = TOLD[value]
    row, plain = engines.lookup(engine), SizingRequest(engine_type=engine)
    request, pinned = replace(plain, **asked), Pinned(**given)
    before = row.pinned_args(Pinned(), plain), row.pinned_env(Pinned(), plain)
    after = row.pinned_args(pinned, request), row.pinned_env(pinned, request)
    assert (before != after) == (engine in table)

"""kubeconform with the schemas of a running API server, made strict: no field that it does not know."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

from tests.cluster_kit.gotools import go_tool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

Json = dict[str, Any]

REF = "#/definitions/"
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"


def write_schemas(openapi: Json, folder: Path) -> int:
    """Write one self-contained JSON schema for each kind, named as kubeconform looks for it.

    Args:
        openapi: the API server's /openapi/v2.
        folder: gets the files.

    Returns:
        How many were written.
    """
    definitions = {name: _strict(node) for name, node in openapi["definitions"].items()}
    definitions[QUANTITY] = {"type": ["string", "number"]}
    written = 0
    for name, node in openapi["definitions"].items():
        for kind in node.get("x-kubernetes-group-version-kind", ()):
            needed = dict(_reach(name, definitions))
            group = f"-{kind['group'].partition('.')[0]}" if kind["group"] else ""
            file = folder / f"{kind['kind'].lower()}{group}-{kind['version'].lower()}.json"
            file.write_text(json.dumps({"$ref": REF + name, "definitions": needed}))
            written += 1
    return written


def _strict(node: Any) -> Any:
    """The schema with its objects closed, and with what OpenAPI cannot say about numbers in strings."""
    if isinstance(node, list):
        return [_strict(child) for child in node]
    if not isinstance(node, dict):
        return node
    if node.get("format") == "int-or-string":
        return {"type": ["string", "integer"]}
    found = {key: _strict(child) for key, child in node.items()}
    if isinstance(node.get("properties"), dict) and "additionalProperties" not in node:
        found["additionalProperties"] = False
    return found


def _reach(name: str, definitions: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
    """The definition and every one that it refers to."""
    seen, waiting = {name}, [name]
    while waiting:
        one = waiting.pop()
        yield one, definitions[one]
        new = set(_refs(definitions[one])) - seen
        seen |= new
        waiting += new


def _refs(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(ref := node.get("$ref"), str):
            yield ref.removeprefix(REF)
        for child in node.values():
            yield from _refs(child)
    elif isinstance(node, list):
        for child in node:
            yield from _refs(child)


def check(text: str, schemas: Path, skip: tuple[str, ...] = ()) -> tuple[int, list[str]]:
    """Check every object of a YAML text.

    Args:
        text: the objects.
        schemas: what `write_schemas` wrote.
        skip: kinds that no API server knows by itself.

    Returns:
        How many objects are valid; and a sentence for each that is not, or has no schema.
    """
    location = f"{schemas}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
    done = subprocess.run(
        [go_tool("kubeconform"), "-strict", "-output=json", "-verbose", f"-skip={','.join(skip)}",
         f"-schema-location={location}", "-"],
        input=text, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    resources = json.loads(done.stdout)["resources"]
    valid = [one for one in resources if one["status"] == "statusValid"]
    wrong = [one for one in resources if one["status"] not in {"statusValid", "statusSkipped"}]
    return len(valid), [f"{one['kind']} {one['name']}: {one['msg']}" for one in wrong]

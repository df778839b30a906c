"""docs/reference/inferenceserver.md: every field of the resource, from the CRD itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from tools.reference.text import code, page, plain, table

ROOT: Final = Path(__file__).resolve().parents[2]
CRD: Final = ROOT / "manifests" / "crd.yaml"
INTRODUCTION: Final = """\
Group `plimsoll.dev`, version `v1alpha1`, kind `InferenceServer`, short name `isrv`, category `inference`,
namespaced, with the subresources `status` and `scale`. Only `spec.model.source`, `spec.engine.type` and
`spec.engine.image` must be given.

`kubectl explain isrv.spec.sizing` shows the same in a terminal. A rule that is broken is refused by the API server
with the message that stands here; what only the operator can check ends in condition
[`Accepted`](conditions.md#accepted)."""


@dataclass
class Reference:
    """The page as it grows; ``seen`` knows where a part of the schema that is used twice was told."""

    sections: list[str] = field(default_factory=list)
    seen: dict[int, str] = field(default_factory=dict)
    written: set[int] = field(default_factory=set)
    fields: int = 0
    rules: int = 0


def schema(path: Path = CRD) -> dict[str, Any]:
    """The schema of the served version."""
    found: dict[str, Any] = definition(path)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


@cache
def definition(path: Path = CRD) -> dict[str, Any]:
    """The whole definition."""
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def undescribed(node: dict[str, Any], path: str) -> list[str]:
    """Fields below this one without a description."""
    found = []
    for name, child in (node.get("properties") or {}).items():
        if not str(child.get("description") or "").strip():
            found.append(f"{path}.{name}")
        found += undescribed(child, f"{path}.{name}")
    if isinstance(node.get("items"), dict):
        found += undescribed(node["items"], f"{path}[]")
    return found


def paths(node: dict[str, Any], path: str) -> list[str]:
    """Every field below this one, a part that is used twice as often as it is."""
    found = []
    for name, child in (node.get("properties") or {}).items():
        found += [f"{path}.{name}", *paths(child, f"{path}.{name}")]
    return found + (
        paths(node["items"], f"{path}[]") if isinstance(node.get("items"), dict) else []
    )


def total() -> int:
    """Fields of spec and status."""
    root = schema()["properties"]
    return sum(1 + len(paths(root[name], name)) for name in ("spec", "status"))


def render(path: Path = CRD) -> str:
    """The page."""
    return build(path)[0]


def build(path: Path = CRD) -> tuple[str, Reference]:
    """The page, and what it counts."""
    root, found = schema(path), Reference()
    found.sections.append("## Name\n\n" + "\n".join(_rules(root, found)))
    for name in ("spec", "status"):
        _section(found, root["properties"][name], name)
    columns = definition(path)["spec"]["versions"][0]["additionalPrinterColumns"]
    found.sections.append("## Columns of kubectl get\n\n" + _columns(columns))
    return page("InferenceServer", INTRODUCTION, *found.sections), found


def _columns(columns: list[dict[str, Any]]) -> str:
    rows = [
        (
            code(c["name"].upper()),
            "wide" if c.get("priority") else "",
            code(c["jsonPath"]),
            plain(c.get("description", "")),
        )
        for c in columns
    ]
    return table(("column", "only with `-o wide`", "from", "what it is"), rows)


def _section(found: Reference, node: dict[str, Any], path: str) -> None:
    """One object: its fields, then a section for each field that is an object itself."""
    found.written.add(id(node))
    required = set(node.get("required") or ())
    rows, deeper = [], []
    for name, child in node["properties"].items():
        found.fields += 1
        inner, below = _object_in(child, f"{path}.{name}")
        if inner is not None:
            deeper.append((inner, below))
        rows.append(_row(found, name, child, (inner, below), required=name in required))
    text = [f"## {path}", plain(node.get("description", ""))] if node.get("description") else []
    head = text or [f"## {path}"]
    rules = _rules(node, found)
    parts = [*head, *(["\n".join(rules)] if rules else [])]
    parts.append(table(("field", "type", "default", "description"), rows))
    found.sections.append("\n\n".join(parts))
    for inner, below in deeper:
        if id(inner) not in found.written:
            _section(found, inner, below)


def _object_in(child: dict[str, Any], path: str) -> tuple[dict[str, Any] | None, str]:
    """The object with fields of its own that this field holds, itself or in a list."""
    if "properties" in child:
        return child, path
    items = child.get("items")
    if isinstance(items, dict) and "properties" in items:
        return items, f"{path}[]"
    return None, path


def _row(
    found: Reference,
    name: str,
    child: dict[str, Any],
    inner: tuple[dict[str, Any] | None, str],
    *,
    required: bool,
) -> tuple[str, ...]:
    told = [plain(child.get("description", ""))]
    target, below = inner
    if target is not None:
        home = found.seen.setdefault(id(target), below)
        told.append(f"See [{home}](#{anchor(home)}).")
    told += _values(child)
    told += [f"**Rule:** {plain(r['message'])}." for r in _own_rules(found, child, target)]
    default = "**required**" if required else ""
    if "default" in child and child["default"] != {}:
        default = code(_short(child["default"]))
    return (code(name), _type(child), default, " ".join(t for t in told if t))


def _own_rules(
    found: Reference, child: dict[str, Any], target: dict[str, Any] | None
) -> list[dict[str, Any]]:
    """Rules of a field; those of an object stand in its section, those of items in the list's row."""
    rules = [] if target is child else list(child.get("x-kubernetes-validations") or ())
    for key in ("items", "additionalProperties"):
        below = child.get(key)
        if isinstance(below, dict) and below is not target:
            rules += below.get("x-kubernetes-validations") or ()
    found.rules += len(rules)
    return rules


def _rules(node: dict[str, Any], found: Reference) -> list[str]:
    rules = node.get("x-kubernetes-validations") or ()
    found.rules += len(rules)
    return [f"- **Rule:** {plain(rule['message'])}." for rule in rules]


def _values(child: dict[str, Any]) -> list[str]:
    told = []
    for node in (child, child.get("items") if isinstance(child.get("items"), dict) else {}):
        assert node is not None
        if "enum" in node:
            told.append("One of " + ", ".join(code(v) for v in node["enum"]) + ".")
    least, most = child.get("minimum"), child.get("maximum")
    if least is not None and most is not None:
        told.append(f"From {least} to {most}.")
    elif least is not None:
        told.append(f"At least {least}.")
    if "maxItems" in child:
        told.append(f"At most {child['maxItems']} entries.")
    return told


def _type(child: dict[str, Any]) -> str:
    if child.get("x-kubernetes-int-or-string"):
        return "Quantity"
    kind = str(child.get("type", ""))
    if kind == "array":
        return f"list of {_type(child['items'])}s"
    if kind == "object" and "additionalProperties" in child:
        return f"map of {_type(child['additionalProperties'])}s"
    return "time" if child.get("format") == "date-time" else kind


def _short(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case list():
            return ", ".join(str(one) for one in value)
    return str(value)


def anchor(path: str) -> str:
    """The anchor that Python-Markdown gives a heading of this text."""
    return "".join(c for c in path.lower() if c.isalnum() or c in "_-")

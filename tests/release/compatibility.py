"""Whether a CustomResourceDefinition is the older one plus additions: what was stored stays valid and means the same.

Pure comparison of two parsed definitions. Every finding is one sentence that begins with the place. Refused:

- a version, field, printed subresource or short name that is gone, another scope, kind or list key;
- another type or format, an enum value that is gone, a bound that is tighter or new, another pattern;
- a field that is newly required; a default that is another one, gone or new: the API server puts it into objects that
  are stored, and an upgrade would change what servers are made of;
- a rule that is new, unless it names a field that is new beside it: only objects that use the addition can meet it.

Words that a person reads (descriptions, rule messages) and printed columns may change. New fields, enum values and
looser bounds are additions.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Json = dict[str, Any]

_LOWER_BOUNDS = ("minimum", "minLength", "minItems", "minProperties")
_UPPER_BOUNDS = ("maximum", "maxLength", "maxItems", "maxProperties")
# Any change of these, to another value or from or to nothing, changes what is valid or how it is merged.
_FIXED = (
    "type",
    "format",
    "pattern",
    "multipleOf",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "uniqueItems",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-embedded-resource",
)


def findings(old: Json, new: Json) -> list[str]:
    """Return what ``new`` takes away from ``old``, both CustomResourceDefinitions."""
    found = list(_names(old["spec"], new["spec"]))
    versions = {version["name"]: version for version in new["spec"]["versions"]}
    for version in old["spec"]["versions"]:
        name = version["name"]
        if name not in versions:
            found.append(f"{name}: the version is gone")
        else:
            found += _version(version, versions[name])
    return found


def _names(old: Json, new: Json) -> Iterator[str]:
    for field in ("group", "scope"):
        if old[field] != new[field]:
            yield f"{field}: {old[field]} became {new[field]}"
    for field in ("kind", "listKind", "plural", "singular"):
        before, after = old["names"].get(field), new["names"].get(field)
        if before != after:
            yield f"names.{field}: {before} became {after}"
    for field in ("shortNames", "categories"):
        for gone in _missing(old["names"].get(field), new["names"].get(field)):
            yield f"names.{field}: {gone} is gone"


def _version(old: Json, new: Json) -> Iterator[str]:
    name = old["name"]
    for flag in ("served", "storage"):
        if old.get(flag) and not new.get(flag):
            yield f"{name}: no longer {flag}"
    for subresource, settings in old.get("subresources", {}).items():
        if new.get("subresources", {}).get(subresource) != settings:
            yield f"{name}: the subresource {subresource} is gone or another one"
    paths = [[field["jsonPath"] for field in v.get("selectableFields", [])] for v in (old, new)]
    for gone in _missing(*paths):
        yield f"{name}: {gone} can no longer be selected by"
    schemas = [version["schema"]["openAPIV3Schema"] for version in (old, new)]
    yield from _schema(name, *schemas)


def _schema(at: str, old: Json, new: Json) -> Iterator[str]:
    yield from _scalars(at, old, new)
    yield from _bounds(at, old, new)
    yield from _rules(at, old, new)
    yield from _fields(at, old, new)
    for word, suffix in (("items", "[]"), ("additionalProperties", ".*")):
        before, after = old.get(word), new.get(word)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _schema(at + suffix, before, after)
        elif before is not None and before != after and after is not True:
            yield f"{at}{suffix}: is gone or another one"


def _scalars(at: str, old: Json, new: Json) -> Iterator[str]:
    for word in _FIXED:
        if old.get(word) != new.get(word):
            yield f"{at}: {word} was {_told(old, word)} and is {_told(new, word)}"
    if old.get("nullable") and not new.get("nullable"):
        yield f"{at}: null is no longer allowed"
    if old.get("default") != new.get("default"):
        yield f"{at}: the default was {_told(old, 'default')} and is {_told(new, 'default')}"
    if "enum" in new and "enum" not in old:
        yield f"{at}: any value was allowed, now only {', '.join(map(str, new['enum']))}"
    elif "enum" in new:
        for gone in _missing(old["enum"], new["enum"]):
            yield f"{at}: the value {gone} is gone"


def _bounds(at: str, old: Json, new: Json) -> Iterator[str]:
    for word in _LOWER_BOUNDS:
        if word in new and (word not in old or new[word] > old[word]):
            yield f"{at}: {word} was {_told(old, word)} and is {_told(new, word)}"
    for word in _UPPER_BOUNDS:
        if word in new and (word not in old or new[word] < old[word]):
            yield f"{at}: {word} was {_told(old, word)} and is {_told(new, word)}"


def _rules(at: str, old: Json, new: Json) -> Iterator[str]:
    before, after = ({rule["rule"] for rule in _list(x)} for x in (old, new))
    added = new.get("properties", {}).keys() - old.get("properties", {}).keys()
    for rule in sorted(after - before):
        if not any(re.search(rf"\b{re.escape(field)}\b", rule) for field in added):
            yield f"{at}: a new rule: {rule}"


def _list(schema: Json) -> list[Json]:
    rules: list[Json] = schema.get("x-kubernetes-validations", [])
    return rules


def _fields(at: str, old: Json, new: Json) -> Iterator[str]:
    before: Mapping[str, Json] = old.get("properties", {})
    after: Mapping[str, Json] = new.get("properties", {})
    for name in before:
        if name in after:
            yield from _schema(f"{at}.{name}", before[name], after[name])
        elif not new.get("x-kubernetes-preserve-unknown-fields"):
            yield f"{at}.{name}: the field is gone"
    for name in sorted(after.keys() - before.keys()):
        if "default" in after[name]:
            yield f"{at}.{name}: a new field with a default"
    for name in _missing(new.get("required"), old.get("required")):
        yield f"{at}.{name}: is now required"


def _missing(old: list[Any] | None, new: list[Any] | None) -> list[Any]:
    return [item for item in old or [] if item not in (new or [])]


def _told(schema: Json, word: str) -> str:
    return json.dumps(schema[word]) if word in schema else "not set"

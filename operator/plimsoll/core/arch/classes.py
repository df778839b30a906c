"""What transformers' config classes say of a model_type: default sizes and class names."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any

from plimsoll.core.arch.defaults import ROWS

if TYPE_CHECKING:
    from collections.abc import Mapping


@cache
def defaults_of(model_type: str) -> Mapping[str, Any]:
    """Default values of the config class for that model_type; empty when there is no such class."""
    start = ROWS.find(f"\n{model_type}\t") if model_type else -1
    if start < 0:
        return {}
    start += len(model_type) + 2
    row: dict[str, Any] = json.loads(ROWS[start : ROWS.index("\n", start)])
    return row


def class_of(model_type: str) -> str | None:
    """Name of the class that generates text with such a config."""
    name = defaults_of(model_type).get("#class")
    return name if isinstance(name, str) else None


def type_of(class_name: str) -> str | None:
    """The model_type of a class, for configs that name only ``architectures``.

    Several types may share a class; the one that is called like the class wins.
    """
    if not class_name.isidentifier():
        return None
    found = re.findall(rf'^(\S+)\t.*"#class":"{class_name}"', ROWS, re.MULTILINE)
    alike = [name for name in found if class_name.lower().startswith(name.replace("_", "").replace("-", ""))]
    return max(alike, key=len) if alike else found[0] if found else None

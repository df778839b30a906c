"""The names of metrics in a PromQL expression, well enough for our own."""

from __future__ import annotations

import re

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NAME = re.compile(r"\b(?:plimsoll|process)_[a-z_]+\b|\bplimsoll(?::[a-z0-9_]+)+")


def metrics_in(expression: str) -> set[str]:
    """Names of ours and of the process in an expression, also those in a matcher of ``__name__``."""
    names: set[str] = set()
    for words in re.findall(r'__name__=~"([^"]*)"', expression):
        names |= set(words.split("|"))
    return names | set(_NAME.findall(_STRING.sub('""', expression)))

"""The measured cache and parameter sizes of tests/data/cache_oracle.jsonl."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

from plimsoll.core.arch import read_spec
from plimsoll.core.errors import PlimsollError
from plimsoll.core.kv import cache_size

DATA: Final = Path(__file__).parent / "data"
STRANGER: Final = "somebodys_own_model"
BYTES: Final = ("all_full", "windows_honoured", "window", "state", "cross")


@cache
def records() -> dict[str, dict[str, Any]]:
    """``part/name`` -> record: config, expected bytes (None: not known), params and their source."""
    found = {}
    for line in (DATA / "cache_oracle.jsonl").read_text().splitlines():
        record = json.loads(line)
        found[f"{record['part']}/{record['name']}"] = record
    return found


@cache
def varied() -> dict[str, dict[str, Any]]:
    """``varied/name`` -> record of a randomly changed config; see tools/vary_configs.py."""
    lines = (DATA / "varied_configs.jsonl").read_text().splitlines()
    found = [{"part": "varied", **json.loads(line)} for line in lines]
    return {f"varied/{record['name']}": record for record in found}


def strange(config: dict[str, Any]) -> dict[str, Any]:
    """The same config under a name that nobody knows; of a wrapper, its text model's too."""
    renamed = config | {"model_type": STRANGER, "architectures": ["SomebodysOwnForCausalLM"]}
    for key in ("text_config", "llm_config", "language_config", "thinker_config", "decoder"):
        if isinstance(renamed.get(key), dict):
            renamed[key] = strange(renamed[key])
    return renamed


def config(name: str) -> dict[str, Any]:
    """The config of the record ``part/name``."""
    found: dict[str, Any] = records()[name]["config"]
    return found


def differences(record: dict[str, Any]) -> list[str]:
    """What a record's config is read as, where it is not what was measured.

    Bytes must be equal, parameters within 0.1 %; a known config has no field that is not understood.
    """
    try:
        spec = read_spec(record["config"])
    except PlimsollError as error:
        return [f"refused: {error}"[:160]]
    size = cache_size(spec, "bf16", model_dtype="bf16")
    found = [
        f"{key} {getattr(size, key)} instead of {record[key]}"
        for key in BYTES
        if record[key] is not None and getattr(size, key) != record[key]
    ]
    expected = record["params"]
    if expected is not None and abs(spec.parameters - expected) * 1000 > expected:
        found.append(f"params {spec.parameters} instead of {expected}")
    if record["tied"] not in {None, spec.tied}:
        found.append(f"tied {spec.tied} instead of {record['tied']}")
    return found + [note for note in spec.notes if "not understood" in note]

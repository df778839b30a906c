"""Servers that an older operator's definition stored: an upgrade asks and renders nothing anew.

tests/data/stored_servers.json holds specs as they were stored before the modes Auto and InPod, the
rollout's strategies and the answers to running out of memory, with the fingerprints that the
operator of that time gave them (commit 95ccd03; the stamp is STAMP). They are in running servers'
pod templates: where one of them changes, an upgrade measures and restarts every server in the
world. So no text in that file may be edited; make a new field absent when it is unset instead.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from plimsoll.controller.crd import parse, sizing_request
from plimsoll.controller.objects import Pin, Stamp, deployment, sizing_key
from plimsoll.controller.objects.names import INPUTS_HASH
from tests.unit.controller.builders import CONTEXT
from tests.unit.manifests.samples import MINIMAL, schema

STORED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "stored_servers.json").read_text()
)
STAMP = Stamp(
    max_total_token_num=409600,
    max_sequences=256,
    context_length=8192,
    prefill_tokens=4096,
    weight_bytes=16_000_000_000,
    model_file=None,
    pin=Pin("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"),
)
SPEC = schema()["properties"]["spec"]


def defaulted(value: Any, node: dict[str, Any]) -> Any:
    """What the API server makes of a stored value as it reads it: absent fields get the defaults of today."""
    if isinstance(value, dict) and "properties" in node:
        filled = {
            name: copy.deepcopy(child["default"])
            for name, child in node["properties"].items()
            if "default" in child
        } | value
        return {name: defaulted(item, node["properties"][name]) for name, item in filled.items()}
    return value


@pytest.mark.parametrize("read_anew", [False, True])
@pytest.mark.parametrize("name", STORED)
def test_a_stored_server_keeps_its_fingerprints(name: str, *, read_anew: bool) -> None:
    row = STORED[name]
    spec = defaulted(row["spec"], SPEC) if read_anew else row["spec"]
    server = parse(copy.deepcopy({**MINIMAL, "spec": spec}))
    assert json.loads(sizing_request(server).to_json()) == row["request"]
    assert sizing_key(server) == row["sizingKey"]
    # As the running template has it: a newer rendering must see that its inputs are the same.
    running = {"metadata": {"annotations": {INPUTS_HASH: row["inputsHash"]}}}
    wanted = deployment(server, STAMP, CONTEXT, {"spec": {"template": running}})
    assert wanted["spec"]["template"]["metadata"]["annotations"][INPUTS_HASH] == row["inputsHash"]


@pytest.mark.parametrize("name", ["as stored", "LlamaCpp"])
def test_a_stored_server_is_read_as_it_was_stored(name: str) -> None:
    """A default of a later field would come with every read, and an older operator refuses the field.

    It reads beside the new definition during every upgrade, and after one that was taken back.
    """
    assert defaulted(STORED[name]["spec"], SPEC) == STORED[name]["spec"]


def test_reading_anew_fills_in_what_was_not_stored() -> None:
    assert defaulted(STORED["as written"]["spec"], SPEC) == STORED["as stored"]["spec"]

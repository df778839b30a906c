"""The samples are accepted as they are, and the rendered ones are what the operator would write today."""

from __future__ import annotations

import pytest

from plimsoll.controller.crd import sizing_request
from plimsoll.controller.observed import Observed
from plimsoll.controller.status import TRUE
from plimsoll.controller.steps.acceptance import accept
from plimsoll.core.engines import ENGINES, lookup
from tests.render_samples import FOLDER, RENDERED, SAMPLES, render, servers, text

NAMES = sorted(path.stem for path in SAMPLES.glob("*.yaml"))

PINNED = (
    "--max_total_token_num",
    "--batch_max_tokens",
    "--chunked_prefill_size",
    "--running_max_req_size",
    "--max_req_total_len",
    "--graph_max_batch_size",
    "--llm_kv_type",
    "--model_dir",
    "--host",
    "--port",
    "--tp",
)


@pytest.mark.parametrize("name", RENDERED)
def test_rendered_sample_is_current(name: str) -> None:
    assert (FOLDER / f"{name}.yaml").read_text() == text(name), "run python -m tests.render_samples"


def test_every_engine_has_a_sample_that_is_rendered() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(RENDERED)
    found = {server.spec.engine.type for name in RENDERED for server in servers(name)}
    assert found == set(ENGINES)


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_accepted_and_nothing_in_them_is_unknown(name: str) -> None:
    """No flag is Plimsoll's, and version, flags and environment names all stand in the tables."""
    for server in servers(name):
        condition = accept(Observed(raw={}, server=server))
        assert condition.status == TRUE, condition.message
        request = sizing_request(server)
        _, doubts = lookup(server.spec.engine.type).adopt(request)
        assert doubts == ()
        assert server.spec.engine.version


def test_every_owned_flag_stands_once_with_a_value() -> None:
    containers = render()["spec"]["template"]["spec"]["containers"]
    (server,) = containers
    words = [*server.get("command", []), *server["args"]]
    for flag in PINNED:
        found = [word for word in words if word.split("=")[0] == flag]
        assert len(found) == 1, (flag, words)
        assert found[0].partition("=")[2], found
    assert server["image"] == "ghcr.io/modeltc/lightllm:v1.2.0"
    assert tuple(server["command"]) == lookup("LightLLM").default_command


def test_the_page_of_samples_names_each() -> None:
    page = (SAMPLES / "README.md").read_text()
    assert [name for name in NAMES if f"[{name}.yaml]({name}.yaml)" not in page] == []
    assert [name for name in RENDERED if f"(rendered/{name}.yaml)" not in page] == []

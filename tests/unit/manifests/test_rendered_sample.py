"""The rendered LightLLM sample is what the operator would write today."""

from __future__ import annotations

from plimsoll.core.engines import lookup
from tests.render_samples import TARGET, render, text

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


def test_rendered_sample_is_current() -> None:
    assert TARGET.read_text() == text(), "run `python -m tests.render_samples`"


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

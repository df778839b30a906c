"""Every reader of what strangers write, with good input to start from.

A target takes bytes, or a JSON document, and may raise nothing but a ``PlimsollError``. Where a thing
is read in two ways, both must agree.
"""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from plimsoll.checkpoint import fit_checkpoint, parse_config, read_checkpoint
from plimsoll.checkpoint.gguf import read_header as read_gguf
from plimsoll.checkpoint.opcodes import Unfamiliar, tensors_in
from plimsoll.checkpoint.safetensors import tensors_of
from plimsoll.checkpoint.shards import INDEX
from plimsoll.checkpoint.tally import Tally, scan_index
from plimsoll.checkpoint.torchzip import read_torch
from plimsoll.cli.__main__ import main
from plimsoll.core import fit
from plimsoll.core.arch import FAMILIES, read_spec
from plimsoll.core.device import Device
from plimsoll.core.engines import ENGINES
from plimsoll.core.engines.readback import classify_failure, read_endpoint, read_log
from plimsoll.core.errors import PlimsollError
from plimsoll.core.quantization import parse_quantization
from plimsoll.core.report import decode, encode
from plimsoll.core.request import SizingRequest
from plimsoll.core.units import GIB
from plimsoll.core.weights import Manifest, computed
from tests.unit.checkpoint import hostile, test_tally, test_torchzip
from tests.unit.checkpoint.test_gguf import ARCH, GOOD, build, pair, text
from tests.unit.core.test_quantization import BLOCKS
from tests.unit.core.test_report import FAILURE, HASH, REPORT, UID

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = Path(__file__).parents[1] / "data"
CARD = Device("NVIDIA H100 80GB HBM3", 79 * GIB, 79 * GIB, 78 * GIB)


@dataclass(frozen=True, slots=True)
class Target:
    """One reader.

    Attributes:
        run: Takes bytes or a document.
        seeds: Good input.
        keys: Names to add to a document; empty: the seeds are bytes.
    """

    run: Callable[[Any], object]
    seeds: tuple[Any, ...]
    keys: tuple[str, ...] = ()


def _configs() -> tuple[dict[str, Any], ...]:
    """A config of every family: those that were measured, and every type by its bare name."""
    lines = (DATA / "cache_oracle.jsonl").read_text().splitlines()
    measured = [json.loads(line)["config"] for line in lines]
    return (*measured, *({"model_type": model_type} for model_type in FAMILIES))


def _keys(documents: tuple[dict[str, Any], ...]) -> tuple[str, ...]:
    found = {key for document in documents for key in document}
    return tuple(
        sorted(found | {"quantization_config", "text_config", "layer_types", "sliding_window"})
    )


def run_config(document: Any) -> None:
    """config.json to spec, cache and computed weights."""
    spec = read_spec(parse_config(json.dumps(document).encode()))
    computed(spec, "bf16")
    fit(document, None, None, None)


def run_engines(document: Any) -> None:
    """The same to the answer of each engine in both modes."""
    for name in ENGINES:
        for mode, tensor in ((None, 1), ("Engine", 2)):
            request = SizingRequest(name, tensor=tensor, mode=mode)
            try:
                answer = fit(document, None, CARD, request)
            except PlimsollError:
                continue
            json.dumps(answer.document())
            if answer.budget is not None:
                budget = answer.budget
                reserve = sum(budget.reserve.values())
                assert (
                    budget.kv == budget.free_after_init - budget.weights - reserve - budget.safety
                )


def run_request(document: Any) -> None:
    """Settings and the user's arguments."""
    request = SizingRequest.from_json(json.dumps(document))
    fit(hostile.CONFIG, None, CARD, request)


def run_header(data: bytes) -> None:
    """Both ways to read a header."""
    size = 64 if len(data) % 2 else test_tally.DATA
    tally = Tally()
    if tally.add(data, size):
        strict = Manifest.of(tensors_of(data, size, "x"), "safetensors")
        assert strict.parts == tally.parts()
    else:
        tensors_of(data, size, "x")


def run_index(data: bytes) -> None:
    """Both ways to read an index."""
    found = scan_index(io.BytesIO(data), 16)
    if found is not None:
        weight_map = json.loads(data)["weight_map"]
        names = [name.encode() for name in weight_map]
        files = {file.encode() for file in weight_map.values()}
        assert files <= found.files
        # A name that is repeated is counted twice, which the files' own names then contradict.
        repeated = len(names) < found.fingerprint[0]
        assert repeated or files == found.files
        assert repeated or found.fingerprint[1] == sum(map(hash, names))


def run_gguf(data: bytes) -> None:
    """GGUF header, to its spec."""
    header = read_gguf(io.BytesIO(data), len(data), "x.gguf")
    fit(header.metadata, Manifest.of(header.tensors, "gguf"), CARD, SizingRequest("LlamaCpp"))


def run_torch(data: bytes) -> None:
    """PyTorch's zip."""
    found = read_torch(io.BytesIO(data), len(data), "x.bin")
    assert sum(kind.size for kind in found.tensors.values()) <= len(data)


def run_pickle(data: bytes) -> None:
    """Opcodes alone: most changes of a zip never get so far."""
    try:
        tensors_in(data)
    except Unfamiliar:
        return


def run_folder(document: Any) -> None:
    """Whole folders: config, index and two files."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        for file in ("config.json", INDEX, "hf_quant_config.json"):
            if file in document:
                (folder / file).write_text(json.dumps(document[file]))
        headers = document.get("headers")
        for file, header in headers.items() if isinstance(headers, dict) else ():
            if (
                file.isascii()
                and file.endswith(".safetensors")
                and "/" not in file
                and "\0" not in file
            ):
                content = json.dumps(header).encode()
                data = len(content).to_bytes(8, "little") + content + bytes(128)
                (folder / file[-80:]).write_bytes(data)
        fit_checkpoint(read_checkpoint(folder), CARD, SizingRequest("LightLLM", tensor=2))


def run_report(data: bytes) -> None:
    """Termination message."""
    message = data.decode(errors="surrogateescape")
    outcome = decode(message, pod_uid=UID, request_hash=HASH)
    assert decode(encode(outcome), pod_uid=UID, request_hash=HASH) == outcome


def run_command(data: bytes) -> None:
    """The command line: never another end than an exit code."""
    words = [word for word in data.decode(errors="replace").split("\n") if "\0" not in word]
    if any(word in {"-", "-h", "--help", "--version"} for word in words):
        return
    sink = io.StringIO()
    with redirect_stdout(sink), redirect_stderr(sink):
        assert main(words) in {0, 1, 2, 3}


def run_quantisation(document: Any) -> None:
    """Quantisation blocks."""
    found = parse_quantization(document if isinstance(document, dict) else {"a": document})
    if found is not None:
        found.keeps("model.layers.3.mlp.gate_proj")
        if found.layout is not None:
            assert found.layout.size((256, 512)) > 0


def run_log(data: bytes) -> None:
    """Logs and endpoints of engines."""
    words = data.decode(errors="replace")
    for name in ENGINES:
        read_log(name, words)
        classify_failure(name, words)
        for path in ("/metrics", "/server_info", "/v1/models", "/info", "/props"):
            read_endpoint(name, path, words)


_CONFIGS = _configs()
_SMALL = tuple(config for config in _CONFIGS if len(json.dumps(config)) < 3000)
_FOLDER = {
    "config.json": hostile.CONFIG | {"num_hidden_layers": 1},
    INDEX: {"weight_map": {"model.layers.0.a": "a.safetensors", "b": "b.safetensors"}},
    "hf_quant_config.json": {"quantization": {"quant_algo": "FP8"}},
    "headers": {
        "a.safetensors": {"model.layers.0.a": {"dtype": "BF16", "shape": [8, 8], "data_offsets": [0, 128]}},
        "b.safetensors": {"b": {"dtype": "F8_E4M3", "shape": [128], "data_offsets": [0, 128]}},
    },
}  # fmt: skip
_COMMANDS = (
    "fit\nx.json\n--engine=VLLM\n--gpu-name=NVIDIA H100\n--gpu-total=79.19GiB\n--weights=12.5GiB",
    "fit\nx.json\n--engine\nSGLang\n--engine-arg=--mem-fraction-static=0.9\n--tensor\n2\n-o\njson",
    "fit\nx.json\n--gpu\nH100-80GB\n--context=8K\n--kv-cache-dtype\nfp8\n--mode=Engine",
    "fit\nx.json\n--nvml-total\n81559MiB\n--gpu-free=1e9\n--gpu-free-after-init=78.6 GB",
)
_LOGS = (
    "INFO 05-01 [gpu_worker.py:1] Available KV cache memory: 51.30 GiB\nGPU KV cache size: 430,000 tokens, 26.2x",
    "KV Cache is allocated. #tokens: 123456, K size: 10.00 GB, V size: 10.00 GB\nmax_total_num_tokens=123456",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.00 GiB",
    'vllm:cache_config_info{block_size="16",num_gpu_blocks="27000"} 1.0\ntgi_batch_max_total_tokens 5000',
    '{"max_total_num_tokens": 5000, "data": [{"max_model_len": 4096}]}',
)
_REQUESTS = tuple(
    {"engineType": name, "engineArgs": args, "tensor": 1, "mode": mode}
    for name in ENGINES
    for args in ([], ["--max-model-len=4096", "--dtype", "half", "--unknown"], ["--tp", "2"])
    for mode in ("Auto", "Engine")
)
TARGETS: dict[str, Target] = {
    "config": Target(run_config, _CONFIGS, _keys(_CONFIGS)),
    "engines": Target(run_engines, _SMALL, _keys(_SMALL)),
    "request": Target(
        run_request,
        _REQUESTS,
        ("dtype", "kvCacheDType", "contextLength", "prefillTokens", "maxConcurrentRequests", "pipeline",
         "cudaGraphs", "extraReserve", "stateDType", "prefixCaching", "engineVersion", "engineEnv"),
    ),
    "quantisation": Target(
        run_quantisation,
        tuple(block for block, _ in BLOCKS),
        ("ignore", "bits", "group_size", "config_groups", "quant_algo", "quantization", "exclude"),
    ),
    "folder": Target(run_folder, (_FOLDER,), ("model.safetensors", "__metadata__", "c.safetensors")),
    "header": Target(
        run_header,
        (test_tally.COMPACT.encode(), test_tally.SPACED.encode(), b"{}",
         *(value.encode() for value in test_tally.IRREGULAR.values())),
    ),
    "index": Target(run_index, (test_tally.GOOD.encode(), b'{"weight_map":{"a":"b.safetensors"}}')),
    "gguf": Target(
        run_gguf,
        (GOOD, build([ARCH, pair("a", 9, b"\x08\0\0\0\x01\0\0\0\0\0\0\0" + text("b"))], [])),
    ),
    "torch": Target(run_torch, tuple(test_torchzip.FILES.values())),
    "pickle": Target(
        run_pickle, tuple(data[data.index(b"\x80\x02") :][:600] for data in test_torchzip.FILES.values()
                          if b"\x80\x02" in data)
    ),
    "report": Target(run_report, (encode(REPORT).encode(), encode(FAILURE).encode())),
    "command": Target(run_command, tuple(command.encode() for command in _COMMANDS)),
    "log": Target(run_log, tuple(log.encode() for log in _LOGS)),
}  # fmt: skip

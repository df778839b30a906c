"""What a sizing costs: the sizer's own wall time by phase and its peak memory, on made checkpoints.

    python bench/sizer.py [--runs 15]

Real processes, a fake NVML library (so driver start-up is NOT in the numbers), weight files with true
headers and no data, warm page cache. Prints JSON: times in milliseconds, sizes in bytes; medians of
the runs, with the fastest and slowest beside them. ``startup`` is the rest: interpreter and imports.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.cluster_kit.nvml import STATE_VARIABLE, FakeGpu, build_library, write_state  # noqa: E402

GPU = FakeGpu(
    "GPU-11111111-2222-3333-4444-555555555555",
    "NVIDIA H100 80GB HBM3",
    total=81559 << 20,
    reserved=471 << 20,
)
CASES = ((30, 100), (200, 1000))
SHIM = Path(__file__).with_name(
    "slow_mount.c"
)  # adds the time of a round trip to open, stat and read
ROUND_TRIP_US = 500
DEADLINE = 1.0  # seconds, of the sizing whose mount hangs
HIDDEN, EXPERT = 64, 8  # small shapes: the cost is in the number of tensors, not in their bytes


def tensors(count: int, layers: int) -> dict[str, list[int]]:
    """A Mixtral with that many tensors: experts make up the number."""
    made = {"model.embed_tokens.weight": [256, HIDDEN], "model.norm.weight": [HIDDEN]}
    made["lm_head.weight"] = [256, HIDDEN]
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        for part in "qkvo":
            made[f"{prefix}.self_attn.{part}_proj.weight"] = [HIDDEN, HIDDEN]
        made[f"{prefix}.input_layernorm.weight"] = [HIDDEN]
        made[f"{prefix}.post_attention_layernorm.weight"] = [HIDDEN]
        made[f"{prefix}.block_sparse_moe.gate.weight"] = [count // layers // 3, HIDDEN]
    expert = 0
    while len(made) < count:
        layer, number = expert % layers, expert // layers
        prefix = f"model.layers.{layer}.block_sparse_moe.experts.{number}"
        made[f"{prefix}.w1.weight"] = [EXPERT, HIDDEN]
        made[f"{prefix}.w2.weight"] = [HIDDEN, EXPERT]
        made[f"{prefix}.w3.weight"] = [EXPERT, HIDDEN]
        expert += 1
    return dict(list(made.items())[:count])


def make_model(folder: Path, shards: int, per_shard: int) -> int:
    """Write the checkpoint; return the bytes of all headers."""
    folder.mkdir()
    layers = 32
    every = list(tensors(shards * per_shard, layers).items())
    config = {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "hidden_size": HIDDEN,
        "intermediate_size": EXPERT,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 8,
        "vocab_size": 256,
        "max_position_embeddings": 8192,
        "num_local_experts": max(1, len(every) // layers // 3),
        "num_experts_per_tok": 2,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    places: dict[str, str] = {}
    size = 0
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = every[shard * per_shard : (shard + 1) * per_shard]
        size += write_shard(folder / name, part)
        places |= {tensor: name for tensor, _ in part}
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    # As transformers' save_pretrained writes it.
    text = json.dumps(index, indent=2, sort_keys=True) + "\n"
    (folder / "model.safetensors.index.json").write_text(text)
    return size


def write_shard(path: Path, part: list[tuple[str, list[int]]]) -> int:
    """One safetensors file: header and a hole."""
    header: dict[str, Any] = {}
    end = 0
    for name, shape in part:
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(
        header, separators=(",", ":")
    ).encode()  # as the safetensors library writes it
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return len(text)


def environment(folder: Path) -> dict[str, str]:
    """What the kubelet would set."""
    state = folder / "nvml" / "devices.conf"
    write_state(state, [GPU])
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT / "operator"),
        "LD_LIBRARY_PATH": str(build_library(folder).parent),
        STATE_VARIABLE: str(state),
        "NVIDIA_VISIBLE_DEVICES": GPU.uuid,
        "PLIMSOLL_REQUEST": '{"engineType":"LightLLM","engineVersion":"1.2.0"}',
        "PLIMSOLL_REQUEST_HASH": "0" * 40,
        "PLIMSOLL_POD_UID": "bench",
        "PLIMSOLL_DEVICE_COUNT": "1",
        "PLIMSOLL_ENV_FILE": str(folder / "env"),
        "PLIMSOLL_TERMINATION_LOG": str(folder / "termination-log"),
    }


def build_shim(folder: Path) -> Path:
    """Compile the mount's stand-in."""
    library = folder / "slow_mount.so"
    flags = [
        "-std=c11",
        "-D_GNU_SOURCE",
        "-D_LARGEFILE64_SOURCE",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
    ]
    made = ["-fPIC", "-shared", "-o", str(library), str(SHIM), "-ldl"]
    subprocess.run(["cc", *flags, *made], check=True)
    return library


def hung(env: dict[str, str], runs: int) -> dict[str, Any]:
    """A read that never returns: how long after its deadline the sizer has ended, and with which code."""
    late, codes = [], set()
    env = env | {"PLIMSOLL_DEADLINE": str(DEADLINE)}
    for _ in range(runs):
        start = time.perf_counter()
        command = [sys.executable, "-m", "plimsoll.sizer", "size"]
        done = subprocess.run(command, env=env, capture_output=True, check=False, timeout=60)
        late.append((time.perf_counter() - start - DEADLINE) * 1000)
        codes.add(done.returncode)
    return {"deadlineMs": DEADLINE * 1000, "lateMs": summary(late), "exitCodes": sorted(codes)}


def bare_python() -> float:
    """Wall milliseconds of an interpreter that does nothing."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-I", "-c", "pass"], check=True)
    return (time.perf_counter() - start) * 1000


def once(command: str, env: dict[str, str]) -> tuple[float, dict[str, Any]]:
    """One process: wall milliseconds and the line that it logged."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "plimsoll.sizer", command],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    wall = (time.perf_counter() - start) * 1000
    if done.returncode:
        raise SystemExit(f"the sizer failed with {done.returncode}: {done.stdout}{done.stderr}")
    return wall, json.loads(done.stdout or "{}")


def summary(values: list[float]) -> dict[str, float]:
    """Median, fastest, slowest."""
    return {
        "median": round(statistics.median(values), 1),
        "min": round(min(values), 1),
        "max": round(max(values), 1),
    }


def measure(env: dict[str, str], runs: int) -> dict[str, Any]:
    """Run so often; the first, which fills the page cache, does not count."""
    once("size", env)
    results = [once("size", env) for _ in range(runs)]
    phases = {
        phase: summary([log["phasesMs"][phase] for _, log in results])
        for phase in results[0][1]["phasesMs"]
    }
    phases["startup"] = summary([wall - sum(log["phasesMs"].values()) for wall, log in results])
    return {
        "runs": runs,
        "wallMs": summary([wall for wall, _ in results]),
        # NVML's own time, with the import of its binding, is in the phase nvml.
        "withoutNvmlMs": summary([wall - log["phasesMs"]["nvml"] for wall, log in results]),
        "phasesMs": phases,
        "peakRssBytes": max(log["peakRssBytes"] for _, log in results),
    }


def main() -> None:
    """Print the table as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    cases = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        env = environment(folder)
        idle = summary([once("done", env)[0] for _ in range(runs)])
        for shards, per_shard in CASES:
            model = folder / f"model-{shards}-{per_shard}"
            header_bytes = make_model(model, shards, per_shard)
            result = measure(env | {"PLIMSOLL_MODEL_PATH": str(model)}, runs)
            case = {"shards": shards, "tensorsPerShard": per_shard, "headerBytes": header_bytes}
            cases.append(case | result)
        bare = summary([bare_python() for _ in range(runs)])
        slow = env | {
            "PLIMSOLL_MODEL_PATH": str(model),
            "LD_PRELOAD": str(build_shim(folder)),
            "PLIMSOLL_SLOW_MOUNT": str(model),
        }
        slow_mount = {"roundTripUs": ROUND_TRIP_US, "shards": shards, "tensorsPerShard": per_shard}
        slow_mount |= measure(slow | {"PLIMSOLL_SLOW_MOUNT_US": str(ROUND_TRIP_US)}, runs)
        name = f"-00002-of-{shards:05d}.safetensors"
        hung_mount = hung(slow | {"PLIMSOLL_SLOW_MOUNT_HANG": name}, min(runs, 3))
    machine: dict[str, Any] = {"cpus": os.cpu_count(), "python": platform.python_version()}
    machine |= {"kernel": platform.release(), "load": os.getloadavg()[0]}
    document = {"machine": machine, "pythonMs": bare, "doneMs": idle, "cases": cases}
    print(json.dumps(document | {"slowMount": slow_mount, "hungMount": hung_mount}, indent=1))


if __name__ == "__main__":
    main()

"""What one call of ``plimsoll fit`` costs as a whole process: a config alone, 30 and 200 shards.

    python -m bench.start [--runs 15]

Compiled modules and a warm page cache, as after an installation. Prints JSON: milliseconds of wall time and
of the process's own CPU, medians with the fastest and slowest; ``python`` is the bare interpreter.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench.sizer import CASES, ROOT, make_model, summary

CONFIG: Final = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip
ENGINES: Final = (("VLLM", "0.33.0"), ("SGLang", "0.5.23"), ("LightLLM", "1.2.0"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    compileall.compile_dir(ROOT / "operator", quiet=1)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPATH"] = str(ROOT / "operator")
    with tempfile.TemporaryDirectory() as name:
        config = Path(name) / "config.json"
        config.write_text(json.dumps(CONFIG))
        cases = {"python": [sys.executable, "-c", "pass"]}
        for engine, version in ENGINES:
            cases[f"config, {engine}"] = fit(config, engine, version)
        for shards, tensors in CASES:
            folder = Path(name) / str(shards)
            make_model(folder, shards, tensors)
            cases[f"{shards} x {tensors} tensors, LightLLM"] = fit(folder, "LightLLM", "1.2.0")
        print(
            json.dumps({case: measured(argv, env, runs) for case, argv in cases.items()}, indent=1)
        )


def fit(path: Path, engine: str, version: str) -> list[str]:
    """The command line."""
    words = ["fit", str(path), "--engine", engine, "--engine-version", version, "-o", "json"]
    return [sys.executable, "-m", "plimsoll.cli", *words, "--gpu", "H100-80GB"]


def measured(argv: list[str], env: dict[str, str], runs: int) -> dict[str, Any]:
    """Wall and CPU time of so many processes, one after the other."""
    wall, cpu = [], []
    for _ in range(runs):
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(argv, env=env, check=True, stdout=subprocess.DEVNULL)
        wall.append(1000 * (time.perf_counter() - start))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu.append(1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return {"wallMs": summary(wall), "cpuMs": summary(cpu)}


if __name__ == "__main__":
    main()

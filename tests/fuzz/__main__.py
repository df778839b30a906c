"""``make fuzz``: every reader for FUZZ_SECONDS each; prints executions and crashes of each target.

    python -m tests.fuzz [TARGET...]

FUZZ_SECONDS (60) and FUZZ_SEED (the clock) come from the environment. A crash leaves its input in the
folder that is printed, and ends the program with 1.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from tempfile import mkdtemp

from tests.fuzz.engine import fuzz
from tests.fuzz.targets import TARGETS


def main(names: list[str]) -> int:
    """Run the targets named, or all."""
    seconds = float(os.environ.get("FUZZ_SECONDS", "60"))
    seed = int(os.environ.get("FUZZ_SEED", str(time.time_ns() % 1_000_000_007)))
    print(f"seed {seed}, {seconds:g} s each")
    print(
        f"{'target':<14}{'executions':>12}{'a second':>10}{'read':>10}{'ways to end':>13}{'crashes':>9}"
    )
    total = crashes = 0
    for name in names or TARGETS:
        start = time.monotonic()
        found = fuzz(TARGETS[name], seconds, seed)
        rate = found.executions / (time.monotonic() - start)
        print(
            f"{name:<14}{found.executions:>12,}{rate:>10,.0f}{found.accepted:>10,}{len(found.ends):>13,}"
            f"{len(found.crashes):>9}",
            flush=True,
        )
        total += found.executions
        crashes += len(found.crashes)
        if found.crashes:
            folder = Path(mkdtemp(prefix=f"plimsoll-fuzz-{name}-"))
            for number, (data, why) in enumerate(found.crashes):
                (folder / str(number)).write_bytes(data)
                (folder / f"{number}.txt").write_text(why, errors="replace")
                print("   ", why.strip().splitlines()[-1][:160])
            print(f"    inputs in {folder}")
    print(f"{'all':<14}{total:>12,}{'':>33}{crashes:>9}")
    return 1 if crashes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

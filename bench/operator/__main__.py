"""What the operator costs and how fast it is, beside a Go operator and a stock kopf operator that do the same.

    python -m bench.operator burst --who plimsoll --n 1000 --keep      1,000 servers at once
    python -m bench.operator rate --who plimsoll --seconds 30 --keep   10 servers a second, open loop
    python -m bench.operator down                                      stop the cluster that --keep left

Run as root with ``PYTHONPATH=operator:.``. ``--who`` is plimsoll, floor (Go, controller-runtime) or stock (kopf),
or several with commas; ``--rounds`` repeats them interleaved. Progress goes to standard error, JSON to standard
output. The cluster is a control plane alone (etcd, API server, controllers, scheduler; no nodes) with a name of its
own (``--cluster``). Every operator has an account of its own, by which the audit log tells who called what.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from bench.operator import flow
from bench.operator.contenders import NAMES
from bench.operator.lab import Lab


def parser() -> argparse.ArgumentParser:
    """The command line."""
    main_parser = argparse.ArgumentParser(
        prog="python -m bench.operator", description=(__doc__ or "").splitlines()[0]
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--cluster", default="bench-op", help="name of the cluster (bench-op)")
    common.add_argument("--keep", action="store_true", help="leave the cluster up")
    common.add_argument("--who", default="plimsoll", help=f"of {','.join(NAMES)}")
    common.add_argument("--rounds", type=int, default=1)
    suites = main_parser.add_subparsers(dest="suite", required=True)
    burst = suites.add_parser("burst", parents=[common])
    burst.add_argument("--n", type=int, default=1000)
    rate = suites.add_parser("rate", parents=[common])
    rate.add_argument("--per-second", type=float, default=10)
    rate.add_argument("--seconds", type=float, default=30)
    suites.add_parser("down", parents=[common])
    return main_parser


def main() -> int:
    """Run one suite."""
    given = parser().parse_args()
    lab = Lab(given.cluster)
    if given.suite == "down":
        lab.down()
        return 0
    results: list[dict[str, Any]] = []
    try:
        lab.up()
        lab.clean()
        for _ in range(given.rounds):
            for who in given.who.split(","):
                if given.suite == "burst":
                    results.append(flow.burst(lab, who, given.n))
                else:
                    results.append(flow.rate(lab, who, given.per_second, given.seconds))
    finally:
        if not given.keep:
            lab.down()
    print(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

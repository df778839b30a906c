"""What the operator costs and how fast it is, beside a Go operator and a stock kopf operator that do the same.

    python -m bench.operator burst --who plimsoll --n 1000 --keep      1,000 servers at once
    python -m bench.operator rate --who plimsoll --seconds 30 --keep   10 servers a second, open loop
    python -m bench.operator stamped --lives 150                       from sizing pod to deletion
    python -m bench.operator restart --scales 0,1000,10000             memory, and what a restart costs
    python -m bench.operator fairness | cold | startup | images | profile | sizer
    python -m bench.operator all [--resume]                            every suite, about 20 minutes (`make bench`)
    python -m bench.operator page                                      the tables of docs/performance.md
    python -m bench.operator down                                      stop the cluster that --keep left

Run as root with ``PYTHONPATH=operator:.``. ``--who`` is plimsoll, floor (Go, controller-runtime) or stock (kopf),
or several with commas; ``--rounds`` repeats the burst interleaved. Progress goes to standard error, JSON to standard
output; ``all`` keeps it below the cache. The cluster is a control plane alone (etcd, API server, controllers,
scheduler; no nodes) with a name of its own (``--cluster``). Every operator has an account of its own, by which the
audit log tells who called what.
"""

from __future__ import annotations

import argparse
import sys

from bench.operator import page
from bench.operator.contenders import NAMES
from bench.operator.lab import Lab, LabError, say
from bench.operator.suites import RESULTS, SUITES, Sizes, run


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(
        prog="python -m bench.operator",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("suite", choices=["all", *SUITES, "page", "down"])
    found.add_argument("--cluster", default="bench-op", help="name of the cluster")
    found.add_argument("--keep", action="store_true", help="leave the cluster up")
    found.add_argument(
        "--who", default="", help=f"of {','.join(NAMES)}; default: all, one suite alone: plimsoll"
    )
    found.add_argument("--rounds", type=int, help="of the burst (3; one suite alone: 1)")
    found.add_argument(
        "--n", type=int, default=Sizes.burst, help="servers of a burst and of a cold start"
    )
    found.add_argument("--per-second", type=float, default=Sizes.per_second)
    found.add_argument("--seconds", type=float, default=Sizes.seconds, help="of the open loop")
    found.add_argument("--lives", type=int, default=Sizes.lives)
    found.add_argument("--scales", default=",".join(map(str, Sizes.scales)))
    found.add_argument(
        "--resume", action="store_true", help="with all: leave out what has a result"
    )
    found.add_argument("--only", default="", help="with all: these suites, with commas")
    found.add_argument(
        "--save", action="store_true", help="one suite: keep its result as `all` does"
    )
    return found


def sizes_of(given: argparse.Namespace) -> Sizes:
    """The sizes that were asked for."""
    alone = given.suite != "all"
    return Sizes(
        who=tuple((given.who or ("plimsoll" if alone else ",".join(NAMES))).split(",")),
        rounds=given.rounds or (1 if alone else Sizes.rounds),
        burst=given.n,
        per_second=given.per_second,
        seconds=given.seconds,
        lives=given.lives,
        scales=tuple(int(word) for word in given.scales.split(",")),
        cold=given.n,
    )


def main() -> int:
    """Run suites; 1 when one failed."""
    given = parser().parse_args()
    if given.suite == "page":
        page.write(RESULTS)
        return 0
    lab = Lab(given.cluster)
    if given.suite == "down":
        lab.down()
        return 0
    try:
        if given.suite == "all":
            names = given.only.split(",") if given.only else list(SUITES)
            run(lab, names, sizes_of(given), resume=given.resume)
            page.write(RESULTS)
        else:
            folder = RESULTS if given.save else lab.folder
            run(lab, [given.suite], sizes_of(given), resume=False, folder=folder)
            print((folder / f"{given.suite}.json").read_text())
    except LabError as error:
        say(f"error: {error}")
        return 1
    finally:
        if not given.keep:
            lab.down()
    return 0


if __name__ == "__main__":
    sys.exit(main())

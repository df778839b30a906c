"""The command line of the local cluster: ``python -m tests.cluster_kit up|down|status|load|shell``."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from . import network
from .clean import leftovers
from .cluster import Cluster
from .errors import KitError
from .presets import PRESETS
from .progress import Progress
from .tools import prepare_tools


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    main_parser = argparse.ArgumentParser(
        prog="python -m tests.cluster_kit",
        description="A real Kubernetes on this machine, in namespaces of its own. Needs root.",
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--name", default="demo", help="of the cluster (default: demo)")
    commands = main_parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", parents=[common], help="start it; at once when it runs already")
    up.add_argument(
        "--nodes", choices=sorted(PRESETS), default="demo", help="which nodes (default: demo)"
    )
    commands.add_parser("prepare", help="only build and download what `up` needs (minutes, once)")
    commands.add_parser("down", parents=[common], help="stop it and remove everything of it")
    commands.add_parser("status", parents=[common], help="say whether it runs (exit 1 when not)")
    load = commands.add_parser("load", parents=[common], help="import an image into all nodes")
    load.add_argument("image", type=Path, help="a docker or OCI archive")
    shell = commands.add_parser(
        "shell", parents=[common], help="open a shell in its network, KUBECONFIG set"
    )
    shell.add_argument("words", nargs=argparse.REMAINDER, help="a command to run instead")
    return main_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    0 done; 1 ``status`` of a cluster that does not run, or a failed start; 2 not possible as asked (the name is
    busy, root is missing ...); 130 and 143 interrupted, with everything removed.
    """
    given = parser().parse_args(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background jobs ignore it
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminate)
    progress = Progress()
    try:
        return _run(given, progress)
    except KitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        progress("interrupted; everything was removed" if given.command == "up" else "interrupted")
        return 130


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    """Turn a signal into an exception, so that a half-started cluster is removed."""
    raise SystemExit(128 + number)


def _run(given: argparse.Namespace, progress: Progress) -> int:
    if given.command == "prepare":
        prepare_tools(progress)
        progress("everything is built")
        return 0
    cluster = Cluster(given.name, PRESETS[getattr(given, "nodes", "none")], progress)
    match given.command:
        case "up":
            cluster.up()
        case "down":
            cluster.down()
            progress(f"cluster {given.name} is gone")
        case "status":
            return _status(cluster)
        case "load":
            cluster.load_image(given.image)
        case "shell":
            _shell(cluster, given.words)
    return 0


def _status(cluster: Cluster) -> int:
    """Print one line for each part and return 0 when all is well."""
    healthy = cluster.healthy()
    record = cluster.record()
    if record is not None:
        ended = record.ended()
        for name, (pid, _) in record.pids.items():
            print(f"{name:28} {'ENDED' if name in ended else 'runs'} (pid {pid})")
    if healthy:
        print(f"cluster {cluster.name}: up; KUBECONFIG={cluster.kubeconfig}")
        print(cluster.kubectl("get", "nodes", "-o", "wide").stdout, end="")
        return 0
    left = leftovers(cluster.name)
    print(f"cluster {cluster.name}: {'not healthy' if left else 'not there'}")
    if left:
        print(f"{len(left)} leftovers; `up` replaces and `down` removes them:")
        print("\n".join(f"  {line}" for line in left[:20]))
    return 1


def _shell(cluster: Cluster, words: list[str]) -> NoReturn:
    """Become a shell, or the given command, inside the cluster's network."""
    if not cluster.netns.exists():
        raise KitError(f"cluster {cluster.name} is not up: python -m tests.cluster_kit up")
    command = words[words[:1] == ["--"] :] or [os.environ.get("SHELL", "/bin/sh")]
    argv = network.inside(cluster.netns, *command)
    os.execvpe(argv[0], argv, cluster.environment())


if __name__ == "__main__":
    sys.exit(main())

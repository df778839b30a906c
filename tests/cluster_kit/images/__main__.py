"""Build the images and print where they are: ``python -m tests.cluster_kit.images``."""

import argparse
import json
import os
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster_kit.cache import cache_root
from tests.cluster_kit.command import end_like_ctrl_c
from tests.cluster_kit.errors import KitError
from tests.cluster_kit.progress import Progress

from .build import LOCAL, TARGETS, Stamp, build_images, prepare_context
from .wheels import MACHINES


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0, 1 when a build failed, or 130 when interrupted."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster_kit.images", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--cache", type=Path, default=cache_root(), metavar="FOLDER")
    parser.add_argument("--quiet", action="store_true", help="no table")
    parser.add_argument("--json", action="store_true", help="names and bytes as JSON, no table")
    parser.add_argument(
        "--context",
        type=Path,
        metavar="FOLDER",
        help="only fill the Dockerfile's build/context, for docker; needs no root",
    )
    parser.add_argument(
        "--arch",
        action="append",
        choices=tuple(MACHINES),
        help="with --context: this processor, once for each (default: all)",
    )
    parser.add_argument("--revision", default=LOCAL.revision, metavar="COMMIT")
    parser.add_argument(
        "--epoch",
        type=int,
        default=int(os.environ.get("SOURCE_DATE_EPOCH", LOCAL.epoch)),
        metavar="SECONDS",
        help="the images' time (default: SOURCE_DATE_EPOCH, else one for all local builds)",
    )
    given = parser.parse_args(argv)
    end_like_ctrl_c()
    log = Progress()
    stamp = Stamp(given.revision, given.epoch)
    try:
        if given.context:
            archs = given.arch or tuple(MACHINES)
            prepare_context(given.cache, given.context.absolute(), log, archs, stamp)
            return 0
        targets = given.targets or tuple(TARGETS)
        archives = build_images(given.cache.absolute(), targets, log, stamp)
    except KitError as error:
        log(f"images: {error}")
        return 1
    except KeyboardInterrupt:
        log("interrupted")
        return 130
    if given.json:
        print(json.dumps({name: sizes(path) for name, path in archives.items()}, indent=2))
    elif not given.quiet:
        print_table(archives)
    return 0


def sizes(archive: Path) -> dict[str, str | int]:
    """Return an archive's image name, unpacked layer bytes, layers and path."""
    with tarfile.open(archive) as tar:
        manifest = tar.extractfile("manifest.json")
        assert manifest is not None, archive
        (image,) = json.load(manifest)
        layers = [tar.getmember(name).size for name in image["Layers"]]
    return {
        "image": image["RepoTags"][0],
        "bytes": sum(layers),
        "ownBytes": sum(layers[1:]),  # the first is the base, shared by all
        "archive": str(archive),
    }


def print_table(archives: Mapping[str, Path]) -> None:
    """Print one line per image: name, size, size without the shared base, archive."""
    print(f"{'IMAGE':<42} {'MB':>6} {'WITHOUT BASE':>13}  ARCHIVE")
    for path in archives.values():
        row = sizes(path)
        total, own = int(row["bytes"]) / 1e6, int(row["ownBytes"]) / 1e6
        print(f"{row['image']:<42} {total:>6.1f} {own:>13.1f}  {path}")


if __name__ == "__main__":
    sys.exit(main())

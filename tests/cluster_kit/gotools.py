"""Programs that tests call, built once from the Go module proxy: ``python -m tests.cluster_kit.gotools [NAME ...]``.

``go/go.mod`` pins the version and ``go/go.sum`` the checksum of everything that goes in. One module for all of them, so
that the Kubernetes libraries are compiled once. For another version: ``go get MODULE@VERSION && go mod tidy`` there.
"""

import argparse
import hashlib
import re
import resource
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .cache import Log, build_lock, cache_root
from .command import exit_code
from .errors import KitError
from .golang import go
from .images.host import finished, sweep
from .progress import Progress

PINS = Path(__file__).parent / "go"


@dataclass(frozen=True, slots=True)
class Program:
    """How one program is built.

    Attributes:
        module: the Go module that it is part of.
        package: its main package, as a path in the module.
        stamps: variables that the linker sets; ``{v}`` is the module's version, ``{k}`` the minor version of the
            Kubernetes libraries that it is built with. Without them Helm calls itself ``v4.3``, and Helm 3 renders
            for Kubernetes 1.20 when it asks no cluster.
        tags: build tags.
        pins: folder of its go.mod, below the one that most programs share.
    """

    module: str
    package: str
    stamps: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    pins: str = ""


_HELM3 = "helm.sh/helm/v3"
_HELM4 = "helm.sh/helm/v4"
_PROMETHEUS = "github.com/prometheus/prometheus"
# Of the service discoveries only that of Kubernetes: the clouds' libraries are two thirds of the build.
_DISCOVERY = ("remove_all_sd", "enable_kubernetes_sd")
_PROMETHEUS_STAMPS = ("github.com/prometheus/common/version.Version={v0}",)
_KEDA = "github.com/kedacore/keda/v2"
_KEDA_STAMPS = (f"{_KEDA}/version.Version={{v0}}",)

PROGRAMS = {
    "helm4": Program(_HELM4, "cmd/helm", (f"{_HELM4}/internal/version.version={{v}}",)),
    "helm3": Program(
        _HELM3,
        "cmd/helm",
        (
            f"{_HELM3}/internal/version.version={{v}}",
            f"{_HELM3}/pkg/chartutil.k8sVersionMajor=1",
            f"{_HELM3}/pkg/chartutil.k8sVersionMinor={{k}}",
            f"{_HELM3}/pkg/lint/rules.k8sVersionMajor=1",
            f"{_HELM3}/pkg/lint/rules.k8sVersionMinor={{k}}",
        ),
    ),
    "promtool": Program(_PROMETHEUS, "cmd/promtool", _PROMETHEUS_STAMPS, _DISCOVERY),
    "prometheus": Program(_PROMETHEUS, "cmd/prometheus", _PROMETHEUS_STAMPS, _DISCOVERY),
    "kubeconform": Program("github.com/yannh/kubeconform", "cmd/kubeconform"),
    "glua": Program("github.com/yuin/gopher-lua", "cmd/glua", pins="lua"),
    "kwok": Program("sigs.k8s.io/kwok", "cmd/kwok", pins="kwok"),
    "karpenter": Program("sigs.k8s.io/karpenter", "kwok", pins="karpenter"),
    "keda": Program(_KEDA, "cmd/operator", _KEDA_STAMPS, pins="keda"),
    "keda-adapter": Program(_KEDA, "cmd/adapter", _KEDA_STAMPS, pins="keda"),
}


def pinned(go_mod: str, module: str) -> str:
    """Return the version that a go.mod requires of a module. Raises KitError when it requires none."""
    found = re.search(rf"^(?:require)?\s*{re.escape(module)} (v\S+)", go_mod, re.MULTILINE)
    if not found:
        raise KitError(f"go.mod requires no {module}")
    return found[1]


def build_flags(program: Program, go_mod: str) -> tuple[str, ...]:
    """Return the flags of ``go build``: nothing but the pinned modules, stripped, stamped."""
    version = pinned(go_mod, program.module)
    values = {"v": version, "v0": version.removeprefix("v")}
    if any("{k}" in stamp for stamp in program.stamps):
        values["k"] = pinned(go_mod, "k8s.io/client-go").split(".")[1]
    stamps = [f"-X {stamp.format(**values)}" for stamp in program.stamps]
    return (
        "-mod=readonly",
        "-trimpath",
        *((f"-tags={','.join(program.tags)}",) if program.tags else ()),
        f"-ldflags={' '.join(['-s', '-w', *stamps])}",
    )


def go_tool_path(name: str) -> Path:
    """Return where the program is, or will be: the folder's name changes with everything it is built from."""
    program = PROGRAMS[name]
    pins = PINS / program.pins
    go_mod = (pins / "go.mod").read_text()
    parts = (go_mod, (pins / "go.sum").read_text(), program.package, *build_flags(program, go_mod))
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    version = pinned(go_mod, program.module)
    return cache_root() / "gotools" / name / f"{version}-{key}" / name


def go_tool(name: str, log: Log | None = None) -> Path:
    """Return the program, building it first when it is not there (up to five minutes each on two cores).

    Args:
        name: a key of ``PROGRAMS``.
        log: takes the progress lines; standard error by default.

    Raises:
        KitError: no program of that name, Go is missing or too old, or the build failed; with the compiler's words.
    """
    if name not in PROGRAMS:
        raise KitError(f"no Go program {name!r}; there are {', '.join(PROGRAMS)}")
    target = go_tool_path(name)
    if target.is_file():
        return target
    progress = log or Progress()
    with build_lock(cache_root() / "gotools" / f"{name}.lock", progress):
        if not target.is_file():
            _build(name, target, progress)
    return target


def _build(name: str, target: Path, log: Log) -> None:
    program = PROGRAMS[name]
    pins = PINS / program.pins
    flags = build_flags(program, (pins / "go.mod").read_text())
    log(f"building {name} {target.parent.name.split('-')[0]} (once, minutes on two cores)")
    began, before = time.monotonic(), _children_seconds()
    target.parent.parent.mkdir(parents=True, exist_ok=True)
    sweep(target.parent.parent)
    with finished(target.parent) as scratch:
        for file in ("go.mod", "go.sum"):
            shutil.copy(pins / file, scratch / file)
        package = f"{program.module}/{program.package}"
        go(scratch, "build", *flags, "-o", str(scratch / name), package, log=log)
    wall, cpu = time.monotonic() - began, _children_seconds() - before
    log(f"{name} is built ({wall:.0f} s, {cpu:.0f} s of CPU, {target.stat().st_size / 1e6:.0f} MB)")


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0, 1 when a build failed, or 130 when interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster_kit.gotools", description=__doc__
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PROGRAMS)}")
    parser.add_argument("--quiet", action="store_true", help="do not print where they are")
    given = parser.parse_args(argv)
    log = Progress()

    def build() -> None:
        for name in given.names or PROGRAMS:
            path = go_tool(name, log)
            if not given.quiet:
                print(path)

    return exit_code(build, log, "gotools: ")


if __name__ == "__main__":
    sys.exit(main())

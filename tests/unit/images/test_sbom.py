"""The bill of materials: complete, exact, and the same bytes for the same image."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster_kit.images import build, sbom
from tests.cluster_kit.images.base import neutralise

if TYPE_CHECKING:
    from pathlib import Path

STATUS = """Package: libc6
Status: install ok installed
Architecture: amd64
Source: glibc
Version: 2.36-9+deb12u13

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: base-files
Status: install ok installed
Architecture: amd64
Version: 1:12.4
Description: a base
 of several lines

"""


@pytest.fixture
def contents(tmp_path: Path) -> sbom.Contents:
    told = {
        "packages/Foo_Bar-1.0.dist-info": "Name: Foo_Bar\nVersion: 1.0\nLicense: Apache 2.0\n\nName: x\n",
        "packages/a-2.dist-info": "Name: a\nVersion: 2\nLicense-Expression: MIT\nLicense: x\n",
        "project/plimsoll-0.1.0.dist-info": "Name: plimsoll\nVersion: 0.1.0\n",
    }
    for name, text in told.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "METADATA").write_text(text)
    return sbom.Contents(
        "ghcr.io/x/operator:0.1.0",
        "arm64",
        tmp_path / "packages",
        {"foo.bar": "ab" * 32, "A": "cd" * 32},
        tmp_path / "project",
        "debian:bookworm",
        STATUS,
    )


def read(contents: sbom.Contents) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sbom.document(contents, 1767225600))
    return found


def by_ref(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {component["bom-ref"]: component for component in document["components"]}


def test_python_packages_carry_licence_and_the_digest_of_their_wheel(
    contents: sbom.Contents,
) -> None:
    assert by_ref(read(contents))["pypi/foo-bar"] == {
        "type": "library",
        "bom-ref": "pypi/foo-bar",
        "name": "foo-bar",
        "version": "1.0",
        "purl": "pkg:pypi/foo-bar@1.0",
        "licenses": [{"expression": "Apache-2.0"}],
        "hashes": [{"alg": "SHA-256", "content": "ab" * 32}],
    }
    assert by_ref(read(contents))["pypi/a"]["licenses"] == [{"expression": "MIT"}]


def test_debian_packages_are_those_that_are_installed(contents: sbom.Contents) -> None:
    found = by_ref(read(contents))
    assert [ref for ref in found if ref.startswith("deb/")] == [
        "deb/base-files:amd64",
        "deb/libc6:amd64",
    ]
    assert found["deb/base-files:amd64"]["purl"] == "pkg:deb/debian/base-files@1%3A12.4?arch=amd64"
    assert found["deb/libc6:amd64"]["properties"] == [{"name": "debian:source", "value": "glibc"}]


def test_a_base_that_another_builder_brings_is_named_and_not_guessed(
    contents: sbom.Contents,
) -> None:
    document = read(replace(contents, base=build.PUBLIC_BASE, debian=None))
    assert by_ref(document)["base"]["name"] == build.PUBLIC_BASE
    assert not [ref for ref in by_ref(document) if ref.startswith("deb/")]


def test_every_part_hangs_on_the_image(contents: sbom.Contents) -> None:
    document = read(contents)
    edges = {edge["ref"]: edge["dependsOn"] for edge in document["dependencies"]}
    reached, todo = set(), ["image"]
    while todo:
        ref = todo.pop()
        reached.add(ref)
        todo += edges.get(ref, [])
    assert reached == {"image", *by_ref(document)}


def test_equal_contents_make_equal_bytes_and_another_content_another_serial(
    contents: sbom.Contents,
) -> None:
    again = replace(contents, digests=dict(sorted(contents.digests.items())))
    assert sbom.document(again, 1) == sbom.document(contents, 1)
    changed = replace(contents, digests={**contents.digests, "a": "ef" * 32})
    serials = {read(item)["serialNumber"] for item in (contents, changed)}
    assert len(serials) == 2
    assert all(
        re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", s) for s in serials
    )


def test_locks_are_read_whole() -> None:
    for lock in (build.ROOT / "requirements").glob("*.txt"):
        text = lock.read_text()
        found = sbom.locked(text)
        assert found.keys() == set(re.findall(r"(?m)^([a-z0-9-]+)(?:\[.+\])?==", text))
        assert all(digests for _, digests in found.values())


def test_the_base_tells_nothing_of_the_machine_that_made_it(tmp_path: Path) -> None:
    (tmp_path / "etc/apt").mkdir(parents=True)
    (tmp_path / "etc/hostname").write_text("builder-7\n")
    (tmp_path / "etc/resolv.conf").write_text("nameserver 10.0.0.1\n")
    (tmp_path / "etc/hostname").chmod(0o755)
    (tmp_path / "etc/apt/sources.list").write_text(
        "deb http://mirror.internal/debian bookworm main\n"
    )
    (tmp_path / "etc/shadow").write_text("root:*:20789:0:99999:7:::\n_apt:!:20789:0:99999:7:::\n")
    neutralise(tmp_path)
    told = {path.name: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert (tmp_path / "etc/hostname").stat().st_mode & 0o777 == 0o644
    assert told == {
        "hostname": "",
        "resolv.conf": "",
        "sources.list": "deb http://deb.debian.org/debian bookworm main\n",
        "shadow": "root:*:20454:0:99999:7:::\n_apt:!:20454:0:99999:7:::\n",
    }

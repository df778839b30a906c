"""What is released: the two images as they were built (how big, whose, with what in them), and the chart's archive."""

from __future__ import annotations

import json
import re
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from tests.chart.rendering import helm
from tests.cluster_kit.cache import cache_root
from tests.cluster_kit.images import TARGETS, build_images, sbom
from tests.cluster_kit.images.__main__ import sizes
from tests.cluster_kit.images.build import ROOT
from tests.release import artifacts
from tests.release.versions import project_version

if TYPE_CHECKING:
    from pathlib import Path

SIZER_BYTES = 50_000_000  # above its base
OPERATOR_BYTES = 60_000_000  # above its base; the typed models of the API alone would be 66 MB more
LABELS = {
    "title",
    "description",
    "licenses",
    "vendor",
    "source",
    "version",
    "revision",
    "created",
    "base.name",
}
NAMES = ("operator", "sizer")


class Image:
    """An archive, read once."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self.files: dict[str, tarfile.TarInfo] = {}
        self.document: dict[str, Any] = {}
        with tarfile.open(path) as tar:
            manifest = tar.extractfile("manifest.json")
            assert manifest
            (image,) = json.load(manifest)
            config = tar.extractfile(image["Config"])
            assert config
            self.config: dict[str, Any] = json.load(config)["config"]
            for number, layer in enumerate(image["Layers"]):
                with tarfile.open(fileobj=tar.extractfile(layer)) as files:
                    self._read(files, base=number == 0)

    def _read(self, files: tarfile.TarFile, *, base: bool) -> None:
        for item in files:
            if not base:
                self.files[item.name] = item
            if item.name.removeprefix("./") == f"usr/share/doc/plimsoll/{sbom.NAME}":
                content = files.extractfile(item)
                assert content
                self.document = json.load(content)
            assert not (item.isreg() and item.mode & 0o6000), f"{item.name} is set-user-id"


@pytest.fixture(scope="module")
def images() -> dict[str, Image]:
    archives = build_images(cache_root(), NAMES)
    return {name: Image(name, path) for name, path in archives.items()}


def test_sizes_above_the_base(images: dict[str, Image]) -> None:
    own = {name: int(sizes(image.path)["ownBytes"]) for name, image in images.items()}
    assert own["sizer"] <= SIZER_BYTES
    assert own["operator"] <= OPERATOR_BYTES


def test_the_operator_has_no_typed_models_and_the_sizer_no_client(
    images: dict[str, Image],
) -> None:
    typed = re.compile(r"/kubernetes/(aio/)?client/(models|api)/(?!__)[^/]+\.py$")
    assert not [name for name in images["operator"].files if typed.search(f"/{name}")]
    assert "opt/plimsoll/lib/kubernetes/aio/client/api_client.py" in images["operator"].files
    assert not [name for name in images["sizer"].files if "lib/kubernetes" in name]


@pytest.mark.parametrize("name", NAMES)
def test_who_runs_it_and_what_it_says_of_itself(images: dict[str, Image], name: str) -> None:
    config = images[name].config
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"][:2] == ["python3", "-m"]
    assert "Cmd" not in config or not config["Cmd"]
    labels = {
        key.removeprefix("org.opencontainers.image."): value
        for key, value in config["Labels"].items()
    }
    assert {key for key, value in labels.items() if value} == LABELS
    assert labels["version"] == TARGETS[name].image.rpartition(":")[2]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", labels["created"])


@pytest.mark.parametrize("name", NAMES)
def test_every_file_can_be_read_and_none_be_written_by_its_user(
    images: dict[str, Image], name: str
) -> None:
    for item in images[name].files.values():
        assert (item.uid, item.gid) == (0, 0), item.name
        assert item.mode & 0o004, item.name
        assert not item.mode & 0o022, item.name


@pytest.mark.parametrize("name", NAMES)
def test_the_bill_of_materials_is_the_lock_and_the_files(
    images: dict[str, Image], name: str
) -> None:
    components = images[name].document["components"]
    found = {
        item["name"]: (item["version"], item.get("hashes", [{}])[0].get("content"))
        for item in components
        if item["bom-ref"].startswith("pypi/")
    }
    lock = TARGETS[name].lock
    assert lock
    locked = sbom.locked(lock.read_text())
    assert found.keys() == locked.keys() | {"plimsoll"}
    for package, (version, digests) in locked.items():
        assert found[package][0] == version
        assert found[package][1] in digests, package
    folders = re.compile(r"opt/plimsoll/(?:lib|app)/([^/]+)-[^-/]+\.dist-info")
    unpacked = {match[1] for file in images[name].files if (match := folders.fullmatch(file))}
    assert {sbom.canonical(folder) for folder in unpacked} == found.keys()
    assert (ROOT / "pyproject.toml").read_text().count(f'version = "{found["plimsoll"][0]}"') == 1
    assert all(item.get("licenses") for item in components if item["bom-ref"].startswith("pypi/"))


def test_the_bill_of_materials_has_the_bases_packages(images: dict[str, Image]) -> None:
    for image in images.values():
        components = image.document["components"]
        debian = {
            item["name"]: item["version"]
            for item in components
            if item["bom-ref"].startswith("deb/")
        }
        assert debian["libc6"].startswith("2.36-")
        assert debian["python3.11-minimal"].startswith("3.11.")
        assert len(debian) > 80


def test_the_chart_is_packaged_and_helm_reads_it_again(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        artifacts.package_chart(tmp_path / name, 1767225600)
    (one,) = (tmp_path / "one").iterdir()
    assert one.name == f"plimsoll-{project_version(ROOT)}.tgz"
    assert one.read_bytes() == (tmp_path / "other" / one.name).read_bytes()
    assert "kind: Deployment" in helm("helm4", "template", "x", one, "-n", "y")

"""What is in an image, as CycloneDX 1.6 JSON: this project, its locked packages, and the base's Debian packages.

Equal inputs make equal bytes: the serial number is a hash of the content, the time is the image's. Each Python package
carries the SHA-256 of the very wheel that was unpacked, which is one of those in requirements/*.txt. Licences are what
a package's own metadata says; Debian keeps them in free text, so its packages carry none here.
"""

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.parser import Parser
from pathlib import Path
from typing import Any
from urllib.parse import quote

NAME = "sbom.cdx.json"
SPEC = "1.6"  # https://cyclonedx.org/docs/1.6/json/
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "sbom.plimsoll.dev")
# Spellings that packages use for what SPDX has an identifier for.
_SPDX = {"Apache 2.0": "Apache-2.0"}

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Contents:
    """What one image is made of.

    ``packages``: folders with ``*.dist-info``; ``digests``: SHA-256 of wheels by the name of the package;
    ``debian``: the base's dpkg status, or None where another builder brings the base ``base``.
    """

    image: str
    arch: str
    packages: Path
    digests: Mapping[str, str]
    project: Path
    base: str
    debian: str | None


def document(contents: Contents, epoch: int) -> bytes:
    """Return the bill of materials; ``epoch`` is the image's time in seconds."""
    (project,) = _python(contents.project, {})
    libraries = list(_python(contents.packages, contents.digests))
    base = {
        "type": "container",
        "bom-ref": "base",
        "name": contents.base,
    }
    system = list(_debian(contents.debian)) if contents.debian is not None else []
    name, _, version = contents.image.rpartition(":")
    repository = quote(name, safe="/.-")
    image = {
        "type": "container",
        "bom-ref": "image",
        "name": name,
        "version": version,
        "purl": f"pkg:oci/{name.rpartition('/')[2]}?repository_url={repository}&tag={version}&arch={contents.arch}",
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }
    made = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    body: Json = {
        "metadata": {
            "timestamp": made,
            "tools": {"components": [{"type": "application", "name": "plimsoll-sbom"}]},
            "component": image,
        },
        "components": [project, *libraries, base, *system],
        "dependencies": [
            {"ref": "image", "dependsOn": sorted((project["bom-ref"], "base"))},
            {"ref": project["bom-ref"], "dependsOn": _references(libraries)},
            {"ref": "base", "dependsOn": _references(system)},
        ],
    }
    serial = uuid.uuid5(_NAMESPACE, json.dumps(body, sort_keys=True))
    head = {"bomFormat": "CycloneDX", "specVersion": SPEC, "serialNumber": f"urn:uuid:{serial}"}
    return json.dumps(head | {"version": 1} | body, indent=1).encode() + b"\n"


def _references(components: Iterable[Json]) -> list[str]:
    return sorted(component["bom-ref"] for component in components)


def canonical(name: str) -> str:
    """Return a Python package's name as indexes and locks spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(lock: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Return version and SHA-256 digests of each package in a hash-locked requirements file."""
    found = {}
    for entry in re.split(r"(?m)^(?=[A-Za-z0-9])", lock):
        head = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;\\]+)", entry)
        if head:
            digests = frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})", entry))
            found[canonical(head[1])] = (head[2], digests)
    return found


def _python(folder: Path, digests: Mapping[str, str]) -> Iterator[Json]:
    by_name = {canonical(name): digest for name, digest in digests.items()}
    for metadata in sorted(folder.glob("*.dist-info/METADATA")):
        told = Parser().parsestr(metadata.read_text(), headersonly=True)
        name, version = canonical(told["Name"]), told["Version"]
        component: Json = {
            "type": "library",
            "bom-ref": f"pypi/{name}",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name}@{version}",
        }
        license_ = told["License-Expression"] or told["License"]
        if license_:
            component["licenses"] = [{"expression": _SPDX.get(license_, license_)}]
        if name in by_name:
            component["hashes"] = [{"alg": "SHA-256", "content": by_name[name]}]
        yield component


def _debian(status: str) -> Iterator[Json]:
    """Yield the installed packages of a dpkg status file."""
    for paragraph in sorted(status.strip().split("\n\n")):
        told = Parser().parsestr(paragraph, headersonly=True)
        if told["Status"] != "install ok installed":
            continue
        name, version, arch = told["Package"], told["Version"], told["Architecture"]
        component: Json = {
            "type": "library",
            "bom-ref": f"deb/{name}:{arch}",
            "name": name,
            "version": version,
            "purl": f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={arch}",
        }
        source = told["Source"]
        if source:
            component["properties"] = [{"name": "debian:source", "value": source}]
        yield component

"""Validate CycloneDX files against the schema of their version: ``checkov's python validate_sbom.py FILE ...``.

Runs in checkov's environment, whose own library for bills of materials carries the schemas; imports nothing of this
project.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator


def main() -> int:
    """Return 0 when all are valid, else 1."""
    status = 0
    for name in sys.argv[1:]:
        text = Path(name).read_text()
        version = SchemaVersion.from_version(json.loads(text)["specVersion"])
        error = JsonStrictValidator(version).validate_str(text)
        sys.stdout.write(f"{name}: {'valid' if error is None else error}\n")
        status |= error is not None
    return status


if __name__ == "__main__":
    sys.exit(main())

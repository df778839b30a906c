"""Writes the generated pages below docs/reference: ``python -m tools.reference``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tools.reference import conditions, crd, engines, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "reference"
PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "conditions.md": conditions.render,
    "engines.md": engines.render,
    "inferenceserver.md": crd.render,
    "settings.md": settings.render,
}


def main() -> int:
    """Write every page."""
    FOLDER.mkdir(exist_ok=True)
    for name, render in PAGES.items():
        (FOLDER / name).write_text(render())
    print(counts())
    return 0


def counts() -> str:
    """How much the pages document, for people."""
    _, fields = crd.build()
    return (
        f"{len(conditions.documented())} reasons ({len(conditions.condition_reasons())} of conditions, "
        f"{len(conditions.event_reasons())} of Events only), {crd.total()} fields of the resource with "
        f"{fields.rules} rules, {len(settings.OPERATOR_TEXT)} variables of the operator, "
        f"{len(settings.SIZER_TEXT)} of the sizer"
    )


if __name__ == "__main__":
    sys.exit(main())

"""Links out of docs/, and files of the repository as part of a page, for mkdocs: `hooks` in mkdocs.yml.

A page links to a file of the repository as it stands there (``../manifests/samples/smollm2.yaml``), so
that the link also works where the repository is read. On the site it becomes an address of the
repository; one that leads to nothing is an error. ``<!-- include: ../../charts/plimsoll/README.md -->`` puts
that file there without its title, its links turned alike.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
_LINK: Final = re.compile(r"(?<=\]\()(?!\w+:)([^)\s#:]+)(#[^)\s]*)?(?=\))")
_INCLUDE: Final = re.compile(r"^<!-- include: (\S+) -->$", re.MULTILINE)
_TITLE: Final = re.compile(r"\A# .*\n")
_FENCE: Final = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)


class BrokenLink(Exception):  # noqa: N818 - named for what a writer is told
    """A page links to a file that is not there: the message names both."""


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Called by mkdocs for each page."""
    return rewritten(markdown, page.file.src_uri, config["extra"]["repository"])


def rewritten(markdown: str, page: str, repository: str, root: Path = ROOT) -> str:
    """The page with links to files outside docs/ made addresses of the repository.

    Args:
        markdown: the text of the page; what stands in fences is left alone.
        page: its path below docs/.
        repository: address of the repository.
        root: the work tree.

    Raises:
        BrokenLink: such a file does not exist.
    """
    whole = _with_links(markdown, f"docs/{page}", repository, root)

    def included(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(f"docs/{page}"), found[1]))
        if not (root / target).is_file():
            raise BrokenLink(f"docs/{page} includes {found[1]}, which is not in the repository")
        text = _TITLE.sub("", (root / target).read_text())
        return _with_links(text, target, repository, root)

    return _INCLUDE.sub(included, whole)


def _with_links(markdown: str, source: str, repository: str, root: Path) -> str:
    here = posixpath.dirname(source)

    def address(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, found[1]))
        if target.startswith("docs/") and source.startswith("docs/"):
            return found[0]
        if target.startswith("..") or not (root / target).exists():
            raise BrokenLink(f"{source} links to {found[1]}, which is not in the repository")
        kind = "tree" if (root / target).is_dir() else "blob"
        return f"{repository}/{kind}/main/{target}{found[2] or ''}"

    parts, last = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(address, markdown[last : fence.start()]), fence[0]]
        last = fence.end()
    return "".join([*parts, _LINK.sub(address, markdown[last:])])

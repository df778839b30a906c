"""The site builds without a warning, needs no network, and no page of the repository links to nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools.docs_hook import BrokenLink, rewritten

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
REPOSITORY = "https://example.com/repo"
# Read as they are, not as part of the site.
PAGES = sorted(
    path
    for pattern in ("*.md", "manifests/**/*.md", "charts/*/*.md", ".github/**/*.md")
    for path in ROOT.glob(pattern)
)
_LINK = re.compile(r"\]\((?!\w+:)([^)\s#]*)(?:#([^)\s]+))?\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; mkdocs ends with an error where --strict finds a warning."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def _addresses(site: Path) -> Iterator[tuple[str, str]]:
    for page in site.rglob("*.html"):
        text = page.read_text()
        for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", text):
            for address in re.findall(r"""(?:src|href)=["']?(https?://[^\s"'>]+)""", tag):
                yield page.name, address


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    assert list(_addresses(site)) == []
    # With a source repository in its header the theme asks that host for stars.
    assert not any("data-md-component=source" in page.read_text() for page in pages)
    assert "@import" not in "".join(css.read_text() for css in site.rglob("*.css"))


def test_the_search_finds_reasons(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text()
    assert "troubleshooting/#weightsdonotfit" in index


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_of_the_repository_link_to_what_is_there(page: Path) -> None:
    text = _FENCE.sub("", page.read_text())
    for target, anchor in _LINK.findall(text):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page.name} links to {target}"
        if anchor and path.suffix == ".md":
            assert anchor in _anchors(path), f"{page.name} links to {target}#{anchor}"


def _anchors(path: Path) -> set[str]:
    heads = re.findall(r"(?m)^#+ (.+)$", _FENCE.sub("", path.read_text()))
    return {re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-") for head in heads}


def test_links_out_of_the_pages_become_addresses() -> None:
    text = "[a](../../manifests/samples/smollm2.yaml) [b](../../manifests/samples#x) [c](mig.md#y)"
    assert rewritten(text, "howto/gitops.md", REPOSITORY) == (
        f"[a]({REPOSITORY}/blob/main/manifests/samples/smollm2.yaml) "
        f"[b]({REPOSITORY}/tree/main/manifests/samples#x) [c](mig.md#y)"
    )
    fenced = "```\n[a](../../nothing)\n```\n"
    assert rewritten(fenced, "howto/gitops.md", REPOSITORY) == fenced


@pytest.mark.parametrize("target", ["../nothing.md", "../../../etc/passwd", "../tests/none/"])
def test_a_link_to_nothing_is_an_error(target: str) -> None:
    with pytest.raises(BrokenLink, match=r"docs/index\.md links to"):
        rewritten(f"[a]({target})", "index.md", REPOSITORY)


def test_a_file_can_be_part_of_a_page(tmp_path: Path) -> None:
    (tmp_path / "chart").mkdir()
    (tmp_path / "chart" / "README.md").write_text("# Title\nHello [values](values.yaml).\n")
    (tmp_path / "chart" / "values.yaml").touch()
    made = rewritten("<!-- include: ../chart/README.md -->", "chart.md", REPOSITORY, tmp_path)
    assert made == f"Hello [values]({REPOSITORY}/blob/main/chart/values.yaml).\n"
    with pytest.raises(BrokenLink, match="includes"):
        rewritten("<!-- include: ../none.md -->", "chart.md", REPOSITORY, tmp_path)

"""The check of links in the docs."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.check_links import anchors, broken, links, slug


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Plain words", "plain-words"),
        ("`make check`: what, and why?", "make-check-what-and-why"),
        ("The [link](x.md) – here", "the-link--here"),
        ("γ and *q*, snake_case", "γ-and-q-snake_case"),
    ],
)
def test_slug_is_that_of_github(heading: str, anchor: str) -> None:
    assert slug(heading) == anchor


def test_repeated_headings_are_numbered() -> None:
    assert anchors("# A\n## A\n```\n# B\n```\n<a id='here'></a>\n") == {"a", "a-1", "here"}


def test_code_holds_no_links() -> None:
    text = "see [a](a.md) and `[b](b.md)`\n```\n[c](c.md)\n```\n[d]: d.md\n![e](e.png 'title')\n"
    assert list(links(text)) == [(1, "a.md"), (5, "d.md"), (6, "e.png")]


def test_broken_links_are_told(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# There\n")
    page = tmp_path / "a.md"
    page.write_text(
        "# Here\n[ok](b.md#there) [ok](#here) [ok](/b.md) [ok](https://x.invalid/y)\n"
        "[1](c.md)\n[2](b.md#nowhere)\n[3](#nowhere)\n[4](../out.md)\n"
    )

    assert list(broken(page, tmp_path)) == [
        "a.md:3: c.md does not exist",
        "a.md:4: b.md#nowhere: no such heading",
        "a.md:5: #nowhere: no such heading",
        "a.md:6: ../out.md leads out of the repository",
    ]

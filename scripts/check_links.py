"""Check that relative links and anchors in the Markdown files resolve.

    python scripts/check_links.py [FILE ...]

Links to other hosts are left alone: a check that needs the network is not
repeatable.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent

_FENCE = re.compile(r"^ {0,3}(```|~~~)")
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
_INLINE = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+[\"'(][^)]*)?\)")
_REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s*<?(\S+?)>?(?:\s|$)")
_HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)(?:\s+#+)?\s*$")
_HTML_ANCHOR = re.compile(r"<[a-z]+\s[^>]*\b(?:id|name)=[\"']([^\"']+)[\"']", re.IGNORECASE)
_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The numbered lines of a Markdown text that lie outside fenced code."""
    fence = None
    for number, line in enumerate(text.splitlines(), 1):
        mark = _FENCE.match(line)
        if fence is None and mark:
            fence = mark[1]
        elif fence is not None:
            if mark and mark[1] == fence:
                fence = None
        else:
            yield number, line


def slug(heading: str) -> str:
    """The anchor that GitHub gives to a heading."""
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    plain = re.sub(r"(?<!\w)[*_]+|[*_]+(?!\w)", "", plain)
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """Every anchor of a Markdown text; repeated headings are numbered."""
    found: set[str] = set()
    seen: dict[str, int] = {}
    for _, line in prose(text):
        found.update(_HTML_ANCHOR.findall(line))
        heading = _HEADING.match(line)
        if heading:
            base = slug(heading[1])
            count = seen.get(base, 0)
            seen[base] = count + 1
            found.add(base if count == 0 else f"{base}-{count}")
    return found


def links(text: str) -> Iterator[tuple[int, str]]:
    """Line number and target of every link outside code."""
    for number, line in prose(text):
        bare = _CODE.sub("", line)
        reference = _REFERENCE.match(bare)
        targets = [reference[1]] if reference else _INLINE.findall(bare)
        for target in targets:
            yield number, target


def broken(path: Path, root: Path = ROOT) -> Iterator[str]:
    """What is wrong with the links of one Markdown file, one line each."""
    for number, target in links(path.read_text(encoding="utf-8")):
        if _SCHEME.match(target) or target.startswith("//"):
            continue
        name, _, anchor = unquote(target).partition("#")
        start = root if name.startswith("/") else path.parent
        file = (start / name.lstrip("/")).resolve() if name else path
        where = f"{path.relative_to(root)}:{number}"
        if not file.is_relative_to(root):
            yield f"{where}: {target} leads out of the repository"
        elif not file.exists():
            yield f"{where}: {target} does not exist"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text("utf-8")):
            yield f"{where}: {target}: no such heading"


def markdown_files() -> list[Path]:
    """The Markdown files of the repository, those not yet committed included."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    paths = (ROOT / name for name in sorted(set(listed.split("\0"))) if name)
    return [path for path in paths if path.is_file()]


def main(argv: list[str] | None = None) -> int:
    """Print what is broken; the exit status is 1 if anything is."""
    arguments = sys.argv[1:] if argv is None else argv
    paths = [Path(name).resolve() for name in arguments] or markdown_files()
    problems = [problem for path in paths for problem in broken(path)]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

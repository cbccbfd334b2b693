"""`netsim demo`: what it refuses before anything is played, and what it shows of each token."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from netsim import demo
from netsim.cli import main
from netsim.links.profiles import profile
from netsim.live import TokenLines
from netsim.real import Arrival, Measured, check_drafts
from netsim.scenario import Way
from specwire.committed import Origin
from specwire.errors import BadRequest


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--profile", "4gweak"), "no link is called '4gweak'; did you mean '4g-weak'?"),
        (("--draft", "nosuch"), "--draft nosuch: no draft model at nosuch; give the path"),
        (("--draft", "text.gguf"), "text.gguf is not a GGUF file"),
        (("--max-tokens", "0"), "--max-tokens must be 1 or more, not 0"),
        (("--picture", "nowhere/x.png"), "--picture nowhere/x.png: there is no folder nowhere"),
        (("--picture", "x.gif"), "--picture x.gif: give a name that ends in .svg or .png"),
        (("--picture", "folder.svg"), "--picture folder.svg can't be written"),
    ],
)
def test_what_will_not_do_is_refused_in_a_line_before_anything_is_played(
    words: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    def play(*_: object, **__: object) -> None:
        raise AssertionError("the verifier was started")

    monkeypatch.setattr(demo, "verifier", play)
    if "--draft" not in words:  # the built-in one may not be installed
        monkeypatch.setattr(demo, "check_draft", print)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.svg").mkdir()
    (tmp_path / "text.gguf").write_text("no model")
    before = sorted(tmp_path.iterdir())
    assert main(["demo", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("netsim demo: ") and says in said and said.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_a_draft_that_does_not_suit_the_target_is_no_result():
    check_drafts("mine.gguf", Measured(Way.AUTO, draft="mine"))
    with pytest.raises(BadRequest, match=r"mine\.gguf: nothing can be drafted"):
        check_drafts("mine.gguf", Measured(Way.AUTO))


def lines_of(*arrivals: Arrival, columns: int | None = None) -> list[str]:
    out = io.StringIO()
    terminal = columns is not None
    lines = TokenLines(out, colour=False, terminal=terminal, columns=lambda: columns or 0)
    for arrival in arrivals:
        lines.write(arrival)
    assert out.getvalue().endswith("\n")
    return out.getvalue().splitlines()


def test_each_token_is_a_line_with_time_author_and_text():
    authors = [
        (Origin.RUN_AHEAD, "target"),
        (Origin.ACCEPTED, "accepted draft"),
        (Origin.CORRECTION, "correction"),
        (Origin.BONUS, "bonus"),
    ]
    shown = lines_of(*(Arrival(12.345, " rainbow", origin) for origin, _ in authors))
    assert shown == [f" 12.35 s  {author:<14}  ' rainbow'" for _, author in authors]
    assert lines_of(Arrival(0.5, "", Origin.BONUS)) == ["  0.50 s  bonus           –"]


@pytest.mark.parametrize("columns", [None, 40])
def test_no_text_steers_the_terminal_or_begins_a_line(columns: int | None):
    steering = "\x1b[2J\r\n\x07\u202e\x9b1A\u2028"
    shown = lines_of(Arrival(1.0, steering, Origin.ACCEPTED), columns=columns)
    assert len(shown) == 1 and shown[0].isprintable()


@pytest.mark.parametrize("text", ["x" * 12, "x" * 13, "x" * 200, "虹" * 6, "虹" * 7, "a虹" * 40])
def test_a_line_fits_into_forty_columns(text: str):
    (line,) = lines_of(Arrival(1.0, text, Origin.ACCEPTED), columns=40)
    width = sum(2 if char == "虹" else 1 for char in line)
    assert width <= 40
    assert line.endswith(f"'{text}'") == (text in ("x" * 12, "虹" * 6))
    assert line.endswith(("'", "…"))
    (whole,) = lines_of(Arrival(1.0, text, Origin.ACCEPTED))
    assert whole.endswith(f"'{text}'")


def test_the_table_tells_payload_from_what_is_on_the_wire():
    measured = [
        Measured(
            way,
            arrivals=[Arrival(0.5, "a", Origin.RUN_AHEAD), Arrival(1.0, "b", Origin.RUN_AHEAD)],
            token_ids=[1, 2],
            forwards=2,
            bytes_up=62,
            bytes_down=70,
            wire_up=190,
            wire_down=210,
        )
        for way in demo.WAYS
    ]
    shown = demo.table(measured, profile("4g-weak"))
    rows = {line.split("  ")[0]: line for line in shown.splitlines()}
    assert rows["payload up, down, B"].count("62, 70") == 3
    assert rows["on the wire, B"].count("190, 210") == 3
    assert "payload: the protocol's messages alone" in shown

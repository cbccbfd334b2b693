"""What the chat's commands do, without a terminal or a verifier."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
from pathlib import Path

import pytest

from edge_client.chat.commands import COMMANDS, ChatState, Outcome, help_lines, interpret
from edge_client.chat.conversation import Conversation, Turn, load
from edge_client.chat.history import MOST, FileHistory, history_file
from edge_client.chat.lines import LineReader
from edge_client.chat.settings import SETTINGS
from edge_client.chat.tally import Tally
from edge_client.options import GenerateOptions, Mode
from edge_client.result import Result
from specwire.errors import BadRequest


@pytest.fixture
def state() -> ChatState:
    return ChatState(Conversation("Be brief."), GenerateOptions())


def said(outcome: Outcome) -> str:
    return "\n".join(outcome.say)


def talk(state: ChatState, *turns: tuple[str, str]) -> None:
    for user, assistant in turns:
        state.conversation.answered(user, assistant)


# ── messages and unknown commands ────────────────────────────────────────────────────


def test_what_is_a_message_and_what_a_command(state: ChatState) -> None:
    assert interpret(state, "hello").ask == "hello"
    assert interpret(state, "a\nb").ask == "a\nb"
    assert interpret(state, "//etc/passwd?").ask == "/etc/passwd?"
    assert interpret(state, "") == Outcome()
    assert interpret(state, "/exit").leave
    assert interpret(state, "/help").help


@pytest.mark.parametrize(
    ("word", "nearest"),
    [("/hlep", "/help"), ("/quit", None), ("/undoo", "/undo"), ("/Save", "/save"), ("/", None)],
)
def test_an_unknown_command_names_the_nearest(
    state: ChatState, word: str, nearest: str | None
) -> None:
    outcome = interpret(state, word)
    assert outcome.ask is None and not outcome.leave
    if nearest is not None:
        assert f"did you mean {nearest}?" in said(outcome)
    assert word in said(outcome)


def test_a_path_as_a_message_is_told_how(state: ChatState) -> None:
    assert "//" in said(interpret(state, "/etc/passwd is what?"))
    assert len(said(interpret(state, "/" + "x" * 5000))) < 200


def test_help_names_every_command() -> None:
    shown = "\n".join(help_lines())
    assert all(name in shown for name in COMMANDS)


# ── the conversation ─────────────────────────────────────────────────────────────────


def test_clear_keeps_the_system_message(state: ChatState) -> None:
    talk(state, ("a", "b"))
    interpret(state, "/clear")
    assert state.conversation.messages("x") == [("system", "Be brief."), ("user", "x")]


def test_system_is_shown_set_and_removed(state: ChatState) -> None:
    assert "Be brief." in said(interpret(state, "/system"))
    interpret(state, "/system One word.\nOr two.")
    assert state.conversation.system == "One word.\nOr two."
    interpret(state, "/system none")
    assert state.conversation.messages("x") == [("user", "x")]


def test_undo_and_retry(state: ChatState) -> None:
    assert interpret(state, "/retry").ask is None
    talk(state, ("a", "b"), ("c", "d"))
    assert interpret(state, "/retry").ask == "c"
    assert state.conversation.turns == [Turn("a", "b")]
    assert "empty" in said(interpret(state, "/undo"))
    assert "nothing" in said(interpret(state, "/undo"))


def test_a_message_without_an_answer_is_no_part_of_the_conversation(state: ChatState) -> None:
    talk(state, ("a", "b"), ("c", ""))
    assert [text for _, text in state.conversation.messages("x")] == ["Be brief.", "a", "b", "x"]
    assert interpret(state, "/retry").ask == "c"
    talk(state, ("c", ""))
    interpret(state, "/undo")  # of the message alone
    assert state.conversation.turns == [Turn("a", "b")]


def test_a_retry_that_fails_keeps_the_answer(state: ChatState) -> None:
    talk(state, ("a", "b"))
    assert interpret(state, "/retry").ask == "a"
    assert state.conversation.messages("a") == [("system", "Be brief."), ("user", "a")]
    assert state.conversation.answered("a", "")
    assert state.conversation.turns == [Turn("a", "b")]
    interpret(state, "/retry")
    assert not state.conversation.answered("a", "c")
    assert state.conversation.turns == [Turn("a", "c")]
    assert not state.conversation.answered("d", "")
    assert interpret(state, "/retry").ask == "d"


def test_retry_with_a_fixed_seed_says_what_to_expect(state: ChatState) -> None:
    for change in ("/set seed 7", "/set temperature 0"):
        talk(state, ("a", "b"))
        interpret(state, change)
        assert "same" in said(interpret(state, "/retry"))


# ── files ────────────────────────────────────────────────────────────────────────────


def test_saved_and_loaded(state: ChatState, tmp_path: Path) -> None:
    path = tmp_path / "a talk.json"
    talk(state, ("wie geht’s?", "gut 😀\n"), ("b", "c"))
    state.conversation.answered("d", "half", stopped=True)
    assert "3 messages" in said(interpret(state, f"/save {path}"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    interpret(state, f"/save {path}")  # again, over its own
    other = ChatState(Conversation(), GenerateOptions())
    interpret(other, f"/load {path}")
    assert other.conversation == state.conversation
    assert [item.name for item in tmp_path.iterdir()] == [path.name]


def test_a_file_of_somebody_else_is_not_replaced(state: ChatState, tmp_path: Path) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text("three years of work")
    assert "left as it is" in said(interpret(state, f"/save {path}"))
    assert path.read_text() == "three years of work"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[1]",
        "\xff",
        "[" * 100_000,
        '{"format": "specwire-conversation", "version": 2}',
        '{"format": "specwire-conversation", "version": 1, "turns": 3}',
        '{"format": "specwire-conversation", "version": 1, "turns": [{"user": 1}]}',
    ],
    ids=str,
)
def test_what_can_t_be_loaded_changes_nothing(
    state: ChatState, tmp_path: Path, content: str
) -> None:
    path = tmp_path / "x"
    path.write_bytes(content.encode("latin-1"))
    talk(state, ("a", "b"))
    assert str(path) in said(interpret(state, f"/load {path}"))
    assert state.conversation.turns == [Turn("a", "b")]


@pytest.mark.parametrize(
    "word",
    [
        "/save",
        "/load",
        "/save /",
        "/load /",
        "/save \0",
        "/load ~x~/y",
        "/load /dev/zero",
        "/save /dev/null",
    ],
)
def test_names_that_are_no_files(state: ChatState, word: str) -> None:
    assert said(interpret(state, word))


def test_a_folder_that_is_not_there(state: ChatState, tmp_path: Path) -> None:
    assert "can't write" in said(interpret(state, f"/save {tmp_path}/no/where"))
    with pytest.raises(BadRequest):
        load(tmp_path / "no")


# ── settings ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("temperature 0.2", "temperature", 0.2),
        ("temperature=0", "temperature", 0.0),
        ("top_p 0.9", "top-p", 0.9),
        ("seed 7", "seed", 7),
        ("seed none", "seed", None),
        ("max-tokens 12", "max-tokens", 12),
        ("mode sync", "mode", Mode.SYNC),
        ("gamma 3", "gamma", 3),
        ("gamma none", "gamma", None),
    ],
)
def test_set(state: ChatState, words: str, name: str, value: object) -> None:
    assert "from now on" in said(interpret(state, f"/set {words}"))
    assert SETTINGS[name].value(state.options) == value


@pytest.mark.parametrize(
    "words",
    ["temperature", "temperature -1", "temperature nan", "temperature none", "seed x", "seed -1",
     "mode fast", "gamma -1", "max-tokens 0", "max-tokens 4294967296", "gamma 4294967296",
     "window 4294967296", "max-tokens 1e3", "colour 3", "a b c"],
)  # fmt: skip
def test_what_can_t_be_set_changes_nothing(state: ChatState, words: str) -> None:
    before = state.options
    answer = said(interpret(state, f"/set {words}"))
    assert answer and "from now on" not in answer
    assert state.options == before


def test_set_alone_lists_all(state: ChatState) -> None:
    shown = said(interpret(state, "/set"))
    assert all(name in shown for name in SETTINGS)


# ── lines from a pipe ────────────────────────────────────────────────────────────────


async def test_lines_are_read_as_they_are_asked_for() -> None:
    reading, writing = os.pipe()
    try:
        lines = LineReader(reading)
        lines.start()
        os.write(writing, b"one\r\ntwo \xff\n" + b"x" * 60_000)
        assert await lines.next() == "one"
        assert await lines.next() == "two \ufffd"
        waiting = asyncio.create_task(lines.next())
        await asyncio.sleep(0.1)
        os.write(writing, b"x\n\nlast")
        assert await waiting == "x" * 60_001
        os.set_blocking(writing, False)
        written = 0
        with contextlib.suppress(BlockingIOError):
            while written < 1 << 24:
                written += os.write(writing, b"y" * 4096 + b"\n")
        assert written < 1 << 20  # what nobody asked for is not read
        assert await lines.next() == ""
        os.close(writing)
        writing = -1
        assert (await lines.next()).startswith("last")
        for _ in range(written // 4097):
            await lines.next()
        with pytest.raises(EOFError):
            await lines.next()
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)


# ── account and history ──────────────────────────────────────────────────────────────


def test_stats(state: ChatState) -> None:
    assert "no answers yet" in said(interpret(state, "/stats"))
    result = Result(token_ids=[1] * 10, duration_s=2.0, prompt_tokens=30, bytes_up=5)
    result.counts.rounds, result.counts.examined, result.counts.accepted = 4, 8, 6
    result.ways = {"sync": 10}
    state.tally.add(result)
    state.tally.add(Result(bytes_up=1000))  # nothing came of it
    state.context = 400
    shown = said(interpret(state, "/stats"))
    for part in ("1 answer, 10 tokens", "5.0 tokens/s", "2.50 tokens a round trip", "α 0.75",
                 "40 of 400 tokens (10 %)"):  # fmt: skip
        assert part in shown
    assert Tally().lines(0) == ["no answers yet"]


def test_history_survives_what_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "history"
    told: list[str] = []
    history = FileHistory(path, told.append)
    assert list(history.load_history_strings()) == []
    for text in ("one", "two\nlines", "two\nlines", "\udcff"):
        history.append_string(text)
    with path.open("ab") as file:
        file.write(b"no json\n{}\n\xff\n" + b"[" * 50_000 + b"\n")
    assert list(FileHistory(path, told.append).load_history_strings()) == [
        "\udcff", "two\nlines", "one",
    ]  # fmt: skip
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and not told


def test_history_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text("".join(json.dumps(str(n)) + "\n" for n in range(3 * MOST)))
    found = list(FileHistory(path, print).load_history_strings())
    assert found[0] == str(3 * MOST - 1) and len(found) == MOST
    assert len(path.read_text().splitlines()) == MOST
    FileHistory(path, print).append_string("x" * 100_000)
    assert len(path.read_text()) < 50_000


def test_a_history_that_can_t_be_kept_is_told_once(tmp_path: Path) -> None:
    told: list[str] = []
    history = FileHistory(tmp_path, told.append)  # a folder
    assert list(history.load_history_strings()) == []
    history.append_string("a")
    history.append_string("b")
    assert len(told) == 1 and "--history" in told[0]


def test_where_the_history_is() -> None:
    assert history_file({"XDG_STATE_HOME": "/s"}) == Path("/s/specwire/chat-history")
    found = history_file({"LOCALAPPDATA": "/w"}, "win32")
    assert found == Path("/w/specwire/chat-history")

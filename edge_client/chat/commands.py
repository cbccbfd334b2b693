"""The commands that begin with a slash, and what each does. Writes nothing but files asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from edge_client.chat import settings
from edge_client.chat.conversation import Conversation, load
from edge_client.chat.tally import Tally
from edge_client.options import GenerateOptions
from specwire.errors import BadRequest

KEYS = """\
Enter sends; Alt-Enter, or Enter after a backslash, begins a new line; pasted lines stay together.
Arrow keys and Ctrl-R find earlier inputs, Tab completes commands and files.
Ctrl-C stops an answer or clears the line, twice it leaves; so does Ctrl-D."""


@dataclass
class ChatState:
    """All that commands look at and change.

    model: the target's name, once it is known. context: tokens it can hold.
    """

    conversation: Conversation
    options: GenerateOptions
    tally: Tally = field(default_factory=Tally)
    model: str = ""
    context: int = 0


@dataclass(frozen=True)
class Outcome:
    """What a line led to.

    say: lines for the person. ask: a message for the target. leave: the end.
    """

    say: tuple[str, ...] = ()
    ask: str | None = None
    leave: bool = False
    help: bool = False


@dataclass(frozen=True)
class Command:
    """One command. `run` gets what follows its name."""

    name: str
    argument: str
    about: str
    run: Callable[[ChatState, str], Outcome]


def interpret(state: ChatState, text: str) -> Outcome:
    """Carry a line out: a command, or a message for the target.

    A message that begins with a slash is written with two. What can't be done is said,
    and changes nothing.
    """
    if text.startswith("//"):
        return Outcome(ask=text[1:])
    if not text.startswith("/"):
        return Outcome(ask=text) if text else Outcome()
    name, _, argument = text.partition(" ")
    if "\n" in name:
        name, _, rest = text.partition("\n")
        argument = rest
    command = COMMANDS.get(name)
    if command is None:
        hint = settings.nearest(name, COMMANDS) or "; /help lists them"
        return Outcome(
            say=(f"there is no command {_short(name)}{hint}",)
            + (("a message that begins with / is written with //",) if "/" in name[1:] else ())
        )
    try:
        return command.run(state, argument.strip())
    except BadRequest as error:
        return Outcome(say=(str(error),))


def _short(name: str) -> str:
    return name if len(name) <= 40 else name[:39] + "…"


def help_lines() -> list[str]:
    """A line for each command."""
    heads = {name: f"{name} {cmd.argument}".rstrip() for name, cmd in COMMANDS.items()}
    width = max(map(len, heads.values()))
    return [f"{heads[name]:<{width}}  {command.about}" for name, command in COMMANDS.items()]


# ------------------------------------------------------------------- each command


def _help(state: ChatState, argument: str) -> Outcome:
    return Outcome(help=True)


def _clear(state: ChatState, argument: str) -> Outcome:
    state.conversation.clear()
    kept = "; the system message stays" if state.conversation.system is not None else ""
    return Outcome(say=(f"the conversation is forgotten{kept}",))


def _system(state: ChatState, argument: str) -> Outcome:
    conversation = state.conversation
    if not argument:
        shown = conversation.system
        return Outcome(say=("no system message" if shown is None else f"system: {shown}",))
    conversation.system = None if argument == settings.NOTHING else argument
    return Outcome(say=("no system message from now on",) if conversation.system is None else
                   ("the system message is set",))  # fmt: skip


def _retry(state: ChatState, argument: str) -> Outcome:
    conversation = state.conversation
    answered = conversation.unanswered is None
    user = conversation.retry()
    if user is None:
        return Outcome(say=("there is no message to answer again",))
    say: tuple[str, ...] = ()
    seed = state.options.seed
    if answered and state.options.sampling.greedy:
        say = ("at temperature 0 the answer is the same; /set temperature 0.7 changes that",)
    elif answered and seed is not None:
        say = (f"the seed is {seed}, so the answer may be the same; /set seed none draws anew",)
    return Outcome(say=say, ask=user)


def _undo(state: ChatState, argument: str) -> Outcome:
    user = state.conversation.undo()
    if user is None:
        return Outcome(say=("there is nothing to take back",))
    left = len(state.conversation.turns)
    return Outcome(
        say=(f"taken back: {_first_line(user)}", f"{_count(left, 'message')} and answers are left")
        if left
        else (f"taken back: {_first_line(user)}", "the conversation is empty")
    )


def _save(state: ChatState, argument: str) -> Outcome:
    path = _path(argument, "/save FILE")
    state.conversation.save(path, model=state.model)
    return Outcome(say=(f"saved in {path}: {_count(len(state.conversation.turns), 'message')}",))


def _load(state: ChatState, argument: str) -> Outcome:
    path = _path(argument, "/load FILE")
    state.conversation = load(path)
    turns = state.conversation.turns
    say = [f"loaded from {path}: {_count(len(turns), 'message')}, in place of what was here"]
    if turns:
        say.append(f"the last: {_first_line(turns[-1].user)}")
    return Outcome(say=tuple(say))


def _set(state: ChatState, argument: str) -> Outcome:
    words = argument.replace("=", " ").split()
    if not words:
        return Outcome(say=tuple(settings.listing(state.options)))
    if len(words) != 2:
        raise BadRequest("/set takes a name and a value, such as /set temperature 0.2")
    state.options = settings.change(state.options, *words)
    return Outcome(say=(f"{words[0]} is {words[1]} from now on",))


def _stats(state: ChatState, argument: str) -> Outcome:
    return Outcome(say=tuple(state.tally.lines(state.context)))


def _exit(state: ChatState, argument: str) -> Outcome:
    return Outcome(leave=True)


def expanded(name: str) -> Path:
    """The path of that name; "~" is the home folder where there is one."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def _path(argument: str, usage: str) -> Path:
    if not argument:
        raise BadRequest(f"which file? {usage}")
    path = expanded(argument)
    if "\0" in argument or (path.exists() and not path.is_file()):
        raise BadRequest(f"{argument!r} is no file; {usage}")
    return path


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= 60 and line == text.strip() else line[:59] + "…"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        Command("/help", "", "this", _help),
        Command("/clear", "", "forget the conversation", _clear),
        Command("/system", "[TEXT]", "set the system message, or show it; none removes it",
                _system),
        Command("/retry", "", "answer the last message again", _retry),
        Command("/undo", "", "take the last message and its answer back", _undo),
        Command("/save", "FILE", "keep the conversation in a file", _save),
        Command("/load", "FILE", "go on with a conversation that was kept", _load),
        Command("/set", "[NAME VALUE]", "change temperature, seed, max-tokens, mode, gamma, …; "
                "alone it shows them", _set),
        Command("/stats", "", "what this conversation took so far", _stats),
        Command("/exit", "", "leave (so does Ctrl-D)", _exit),
    )
}  # fmt: skip

"""The commands by name, and how the words behind `saveslot` find one of them."""

from __future__ import annotations

from collections.abc import Sequence
from keyword import iskeyword

from cyclopts import App, CycloptsError, Group, UnknownCommandError, UnusedCliTokensError

from saveslot import __version__
from saveslot.cli.exits import Misuse

app = App(
    name="saveslot",
    help="Durable sessions and checkpoints for AI agents.",
    help_epilogue=(
        "A session is named by its id or the beginning of it; a checkpoint by ID@name, ID@17, ID@~2 or ID@latest. "
        "Exit codes: 0 ok, 1 failure, 2 usage, 3 conflict, 4 auth, 5 not found, 6 unreachable."
    ),
    help_format="plaintext",
    help_flags=["--help", "-h"],
    version=f"saveslot {__version__}",
    version_flags=["--version"],
    print_error=False,
    exit_on_error=False,
    help_on_error=False,
)

# Group, module and what it does. A command's module is imported when it is called: a quarter of the start-up time.
COMMANDS = {
    "Start here": ("demo", {"demo": "Watch an agent die, others finish its work, and nothing happen twice."}),
    "Look": (
        "looking",
        {
            "ls": "List sessions, newest first.",
            "show": "Show a session and what its agent knows, now or as of a checkpoint.",
            "log": "Show a session's history, one line each, newest last.",
            "diff": "Show what changed from one checkpoint to another.",
            "audit": "Show who did what when, also of a deleted or erased session; --verify checks it.",
        },
    ),
    "Count": (
        "counting",
        {"stats": "Count sessions, checkpoints and failures; show how long things take, and how many come."},
    ),
    "Watch": (
        "live",
        {
            "tail": "Follow a session, or all of them, as it happens.",
            "top": "Watch sessions live: state, owner, last sign of life, last checkpoint, rate.",
        },
    ),
    "Change": (
        "acting",
        {
            "rollback": "Go back to an older checkpoint, by a new entry: nothing is lost.",
            "fork": "Start a new session from a checkpoint of this one; prints its id.",
            "pause": "Pause an active session.",
            "resume": "Make a paused session active again.",
            "rm": "Delete sessions; their logs stay as an audit trail.",
            "erase": "Erase what a session or a user's sessions held, for good; says what it would do.",
        },
    ),
    "Keep and forget": (
        "forgetting",
        {
            "pin": "Keep a checkpoint, whatever retention says.",
            "unpin": "Leave a checkpoint to retention again.",
            "thin": "Drop the checkpoints of a session that its rule, or this one, does not keep.",
            "gc": "Remove sessions that ended long ago, and deleted ones.",
        },
    ),
    "Carry": (
        "moving",
        {
            "export": "Write a session with its whole history as JSON.",
            "import": "Store exported sessions, or those of another program; each whole or not at all.",
        },
    ),
    "Move": ("carrying", {"copy": "Copy all sessions to another store, verified; run again, it goes on."}),
    "Keep secret": ("keys", {"key": "Make a key, show which are in use, or wrap all sessions by a new one."}),
    "In the background": (
        "keeping",
        {"keeper": "Fail what gives no sign of life, thin and remove, start a command for each orphan."},
    ),
    "Look after": (
        "tending",
        {
            "doctor": "Check the store, and that every saved state can be rebuilt.",
            "migrate": "Show which format the store has, and bring it up to date.",
            "bench": "Measure this store: checkpoints per second, latencies, bytes.",
            "completion": "Print a completion script for bash, zsh or fish.",
        },
    ),
}
for _place, (_title, (_module, _commands)) in enumerate(COMMANDS.items()):
    _group = Group(_title, sort_key=_place)
    for _name, _help in _commands.items():
        _function = f"{_name}_" if iskeyword(_name) else _name
        app.command(f"saveslot.cli.{_module}:{_function}", name=_name, help=_help, group=_group)
app["--help"].group = app["--version"].group = Group("Help", sort_key=99)

# Options that may stand before the command, and whether a value follows.
BEFORE = {"--store": True, "--namespace": True, "--json": False}


def behind_command(tokens: Sequence[str]) -> list[str]:
    """Options in front of the command put right behind it, where each command knows them."""
    front: list[str] = []
    rest = list(tokens)
    while rest and rest[0].partition("=")[0] in BEFORE:
        name, equals, _ = rest[0].partition("=")
        take = 2 if BEFORE[name] and not equals else 1
        front += rest[:take]
        rest = rest[take:]
    if front and not rest:
        raise Misuse("name a command, such as `saveslot ls` (saveslot --help)")
    if rest[:1] == ["import"] and "-" in rest and "--" not in rest:
        rest = [*(word for word in rest if word != "-"), "--", "-"]  # stdin, not an option without a name
    return [*rest[:1], *front, *rest[1:]]


def complaint(error: CycloptsError) -> str:
    """What is wrong with the command line, in one line."""
    error.verbose = False
    match error:
        case UnknownCommandError():
            said = str(error).partition(" Available commands:")[0]
        case UnusedCliTokensError() if error.unused_tokens:
            said = f"unexpected argument: {' '.join(error.unused_tokens)}"
        case _:
            said = str(error)
    said = " ".join(said.split())
    command = " ".join(["saveslot", *(error.command_chain or ())])
    return f"{said[:1].lower()}{said[1:]} ({command} --help)"

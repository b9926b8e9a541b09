"""The commands by group: module, help and examples of each. What --help, completion and the reference list."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    module: str  # below `saveslot.cli`; imported when its command is called, which saves a quarter of the start-up time
    help: str
    examples: tuple[str, ...]  # without the leading `saveslot`


COMMANDS: dict[str, dict[str, Command]] = {
    "Inspect": {
        "ls": Command(
            "ls",
            "List sessions, newest first.",
            (
                "ls --state active --agent tutor",
                "ls --orphaned --sort changed",
                "ls --state failed --older-than 30d -q",
            ),
        ),
        "show": Command(
            "show",
            "Show a session and its agent's state, now or as of a checkpoint.",
            ("show lesson-1", "show lesson-1@answered", "show lesson-1@~2 --full"),
        ),
        "log": Command(
            "log",
            "Show a session's history, one line per entry, newest last.",
            ("log lesson-1", "log lesson-1 --all -n 20"),
        ),
        "diff": Command(
            "diff",
            "Show what changed between two checkpoints.",
            ("diff lesson-1", "diff lesson-1@asked @answered", "diff lesson-1@3 lesson-2@latest --json"),
        ),
        "steps": Command(
            "steps",
            "List the steps of a session; settle a failed or unknown one.",
            (
                "steps lesson-1",
                "steps lesson-1 --retry charge:order-7",
                "steps lesson-1 --resolve charge:order-7 --result '{\"paid\": true}'",
            ),
        ),
        "records": Command(
            "records",
            "List the values that stand beside a session's state.",
            ("records lesson-1", "records lesson-1 --name note --json"),
        ),
        "workers": Command(
            "workers",
            "List the workers that hold sessions: which are alive, and what each holds.",
            ("workers", "workers --json"),
        ),
        "stats": Command(
            "stats",
            "Count sessions, checkpoints and failures; show durations and throughput.",
            ("stats --agent tutor --newer-than 7d", "stats --between asked answered"),
        ),
        "tail": Command(
            "tail",
            "Follow one session, or all of them, live.",
            ("tail", "tail lesson-1 -n 50"),
        ),
        "top": Command(
            "top",
            "Watch sessions live: state, owner, last heartbeat, last checkpoint, rate.",
            ("top", "top --every 5"),
        ),
        "wait": Command(
            "wait",
            "Wait until a session reaches a state; exit 1 if it ends in another one or time is up.",
            ("wait lesson-1", "wait lesson-1 --state completed --timeout 10m"),
        ),
        "audit": Command(
            "audit",
            "Show who did what when, even for deleted or erased sessions; --verify checks it.",
            ("audit lesson-1", "audit lesson-1 --verify"),
        ),
    },
    "Change": {
        "create": Command(
            "create",
            "Create a session; print its id.",
            (
                "create tutor --user anna --label env=prod",
                'create tutor --id lesson-1 --context \'{"topic": "fractions"}\'',
            ),
        ),
        "label": Command(
            "create",
            "Set or remove labels of a session.",
            ("label lesson-1 env=prod tier=gold", "label lesson-1 --remove tier"),
        ),
        "pause": Command("lifecycle", "Pause an active session.", ("pause lesson-1",)),
        "resume": Command("lifecycle", "Resume a paused session.", ("resume lesson-1", "resume lesson-1 --failed")),
        "complete": Command(
            "lifecycle",
            "Complete a session that no worker holds.",
            ("complete lesson-1", 'complete lesson-1 --result \'{"grade": "A"}\''),
        ),
        "fail": Command(
            "lifecycle",
            "Fail a session; its owner, if any, is refused from then on.",
            ('fail lesson-1 "the student left"', 'fail lesson-1 timeout --details \'{"tool": "search"}\''),
        ),
        "cancel": Command(
            "cancel",
            "Stop the work on a session: its worker is asked to stop; without one, the session fails at once.",
            ("cancel lesson-1", 'cancel lesson-1 --reason "wrong student"'),
        ),
        "release": Command(
            "cancel",
            "Take the lease of a session away from a stuck owner, whose writes are refused from then on.",
            ("release lesson-1", 'release lesson-1 --reason "hangs since noon"'),
        ),
        "record": Command(
            "records",
            "Add a value beside a session's state, such as a note; allowed while it is held and after it ended.",
            ("record lesson-1 note '\"called her mother\"'", "record lesson-1 score 0.8 --key grading-7"),
        ),
        "rollback": Command(
            "rollback",
            "Go back to an older checkpoint by appending an entry; nothing is lost.",
            ("rollback lesson-1 --to asked", "rollback lesson-1 --to ~2"),
        ),
        "fork": Command(
            "rollback",
            "Start a new session from a checkpoint of this one; print its id.",
            ("fork lesson-1@asked", "fork lesson-1 --at 3 --as second-try"),
        ),
        "rm": Command(
            "delete",
            "Delete sessions; their logs stay as an audit trail.",
            ("rm lesson-1 lesson-2", "rm lesson-1 --yes", "rm --state failed --older-than 30d --apply"),
        ),
    },
    "Retention": {
        "pin": Command("retention", "Exempt a checkpoint from retention.", ("pin lesson-1@answered",)),
        "unpin": Command("retention", "Subject a checkpoint to retention again.", ("unpin lesson-1@answered",)),
        "thin": Command(
            "thin",
            "Drop old checkpoints of a session, or of many, by retention policy or by the options given.",
            ("thin lesson-1", "thin lesson-1 --keep-last 20 --max-age 90d --apply", "thin --all --agent tutor --apply"),
        ),
        "gc": Command(
            "retention",
            "Remove sessions that ended or were deleted long ago.",
            ("gc", "gc --older-than 90d --state completed --apply"),
        ),
        "erase": Command(
            "delete",
            "Erase the content of a session, or of a user's sessions, for good (default: dry run).",
            ("erase lesson-1", "erase --user anna --apply"),
        ),
    },
    "Move": {
        "export": Command(
            "export",
            "Write a session with its whole history as JSON.",
            ("export lesson-1 -o lesson-1.json", "export --all backup --zstd"),
        ),
        "import": Command(
            "imports",
            "Import exported sessions, or those of another program; each one whole or not at all.",
            ("import lesson-1.json", "import lesson-1.json --as copy-1", "import -"),
        ),
        "copy": Command(
            "copy",
            "Copy all sessions to another store and verify them, resumable; or one session, under a new id.",
            ("copy sqlite:///agents.db postgresql://agents@db/agents", "copy lesson-1 --as lesson-2 --upto answered"),
        ),
    },
    "Operate": {
        "demo": Command(
            "demo",
            "Watch workers finish a killed agent's work, with every effect done once.",
            ("demo", "demo --fast", "demo --page", "demo --stack"),
        ),
        "serve": Command(
            "serve",
            "Serve the store over HTTP, for other machines and languages, on 127.0.0.1:7788.",
            ("serve", "serve --store postgresql://agents@db/agents --port 8000"),
        ),
        "mcp": Command(
            "mcp",
            "Let a coding agent keep its task: an MCP server over stdio, or HTTP on this machine.",
            ("mcp", "mcp --store agents.db", "mcp --store notes/", "mcp --http --port 7789"),
        ),
        "token": Command(
            "token",
            "Create, list, rotate and revoke tokens, which callers of a server need.",
            (
                "token create grader --scope write --namespace school-7",
                "token create ops --scope admin --expires 30d",
                "token rotate grader",
                "token revoke grader",
            ),
        ),
        "namespace": Command(
            "namespaces",
            "List the namespaces, or erase the content of all sessions of one, for good (default: dry run).",
            ("namespace ls", "namespace rm school-7", "namespace rm school-7 --apply"),
        ),
        "quota": Command(
            "quota",
            "Limit what a namespace may hold and write through servers: sessions, bytes, checkpoints a minute.",
            (
                "quota set school-7 --sessions 1000 --bytes 10GB --checkpoints-per-minute 600",
                "quota ls",
                "quota rm school-7",
            ),
        ),
        "keeper": Command(
            "keeper",
            "Background maintenance: restart orphaned sessions, fail stale ones, apply retention.",
            ("keeper", 'keeper --run "python agent.py {id}" --limit 4 --timeout 10m'),
        ),
        "doctor": Command(
            "doctor",
            "Check the store, and that every saved state can be rebuilt.",
            ("doctor", "doctor --hot valkey://localhost"),
        ),
        "migrate": Command(
            "migrate",
            "Show the format of the store's tables, or bring it up to date.",
            ("migrate", "migrate --apply"),
        ),
        "key": Command(
            "keys",
            "Create an encryption key, list the keys in use, or re-encrypt all session keys with a new key.",
            ("key new", "key list", "key rotate"),
        ),
        "bench": Command("bench", "Measure this store: checkpoints per second, latencies, bytes.", ("bench --quick",)),
        "completion": Command(
            "completion",
            "Print a completion script for bash, zsh or fish.",
            ("completion bash", "completion zsh", "completion fish"),
        ),
    },
}

# Other names: those of the library, and those that people try first.
ALIASES = {
    "list": "ls",
    "get": "show",
    "delete": "rm",
    "watch": "tail",
    "analytics": "stats",
}

"""`saveslot create` and `saveslot label`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from saveslot.cli import target
from saveslot.cli.common import COMMON, Common
from saveslot.cli.exits import Misuse
from saveslot.cli.lifecycle import decided
from saveslot.cli.options import Seen, SessionArg, json_object, labelled
from saveslot.cli.screen import line
from saveslot.cli.sessions import short
from saveslot.errors import NotFound
from saveslot.session.model import AgentSession


async def create(
    agent: Annotated[str, Parameter(name="AGENT", help="The agent type.")],
    /,
    *,
    new_id: Annotated[
        str | None, Parameter(name="--id", metavar="ID", help="The session's id (default: a generated one).")
    ] = None,
    user: Annotated[str, Parameter(metavar="USER", show_default=False, help="The user that it works for.")] = "",
    context: Annotated[str | None, Parameter(metavar="JSON", help="Its context, a JSON object.")] = None,
    metadata: Annotated[str | None, Parameter(metavar="JSON", help="Its metadata, a JSON object.")] = None,
    label: Annotated[
        list[str] | None, Parameter(negative="", metavar="NAME=VALUE", help="A label; repeatable.")
    ] = None,
    common: Common = COMMON,
) -> None:
    about = [json_object(text, name) for text, name in ((context, "--context"), (metadata, "--metadata"))]
    labels = labelled(label or [])
    async with common.sessions(create=True) as sessions:
        session = await sessions.create_session(agent, user, *about, labels=labels, session_id=new_id)
    common.screen.answer(session, [line((session.session_id, "bold"))])


async def label(
    what: SessionArg,
    /,
    *changes: Annotated[str, Parameter(name="NAME=VALUE", help="A label to set.")],
    remove: Annotated[
        list[str] | None, Parameter(negative="", metavar="NAME", help="Remove this label; repeatable.")
    ] = None,
    seen: Seen = None,
    common: Common = COMMON,
) -> None:
    added, removed = labelled(changes, "label"), remove or []
    if not added and not removed:
        raise Misuse("label: name what to change, as in env=prod or --remove env")
    screen = common.screen

    def relabel(session: AgentSession) -> None:
        unknown = [name for name in removed if name not in session.labels]
        if unknown:
            raise NotFound(f"session {session.session_id} has no label {', '.join(unknown)}")
        session.labels = {name: value for name, value in session.labels.items() if name not in removed} | added

    async with common.sessions() as sessions:
        session = await target.find_session(sessions, what, changes=True)
        before = dict(session.labels)
        session = await decided(sessions, session, relabel, lambda session: session.labels != before, seen)
    text = "  ".join(f"{name}={value}" for name, value in session.labels.items()) or "no labels"
    screen.answer(session, [line((short(session.session_id, screen), "bold"), (f"  {text}", ""))])

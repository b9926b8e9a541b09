"""`/v1`: the JSON door, for people, other languages and the page. A file is a noun of its paths."""

from saveslot.server.v1 import checkpoints, lifecycle, records, sessions

ROUTES = [*sessions.ROUTES, *checkpoints.ROUTES, *lifecycle.ROUTES, *records.ROUTES]

"""`/v1`: the JSON door, for people, other languages and the page. A file is a noun of its paths."""

from saveslot.server.v1 import checkpoints, events, leases, lifecycle, records, sessions

ROUTES = [*sessions.ROUTES, *checkpoints.ROUTES, *events.ROUTES, *leases.ROUTES, *lifecycle.ROUTES, *records.ROUTES]

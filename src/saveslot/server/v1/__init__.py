"""`/v1`: the JSON door, for people, other languages and the page. A file is a noun of its paths."""

from saveslot.server.v1 import checkpoints, events, jobs, leases, lifecycle, records, sessions, transfer, upkeep

NOUNS = (sessions, checkpoints, events, jobs, leases, lifecycle, records, transfer, upkeep)
ROUTES = [route for noun in NOUNS for route in noun.ROUTES]

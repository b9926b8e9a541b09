"""A month of a small fleet, always the same: what the pictures show.

Agents book trips, teach and review, over HTTP and at times that this sets (`still.py`). Workers die, sessions fail, one
is rolled back, and a dozen are at work at `NOW`, when the clock stops.
"""

from __future__ import annotations

import datetime as dt
import heapq
import json
import random
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tests.page.still import Clock

NOW = dt.datetime(2026, 11, 9, 14, 20, tzinfo=dt.UTC)
DAY, HOUR, MINUTE = 86400.0, 3600.0, 60.0
# Seconds after which a holder renews its lease; the page calls one late after 10.
BEAT = 7.0

Data = dict[str, Any]
# What an agent does: it yields the seconds until it does more.
Script = Generator[float, None, None]


@contextmanager
def serving(store: Path, clock: Clock) -> Iterator[str]:
    argv = [sys.executable, "-m", "tests.page.still", str(clock.file), "serve", "--store", str(store), "--port", "0"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={"PYTHONHASHSEED": "0"})
    try:
        line = process.stdout.readline()
        assert line.startswith("listening on http://"), line
        yield line.split()[-1]
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


class Stage:
    """The server, its clock, and what is still to happen."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._connection = HTTPConnection(url.removeprefix("http://"), timeout=60)
        self.clock = clock
        self._waiting: list[tuple[float, int, Script]] = []

    def call(self, method: str, path: str, body: Any = None, lease: str = "") -> Any:
        headers = {"content-type": "application/json", "if-match": "*", **({"saveslot-lease": lease} if lease else {})}
        self._connection.request(method, f"/v1{path}", None if body is None else json.dumps(body), headers)
        answer = self._connection.getresponse()
        content = answer.read()
        assert answer.status < 400, (method, path, content)
        return json.loads(content) if content else None

    def close(self) -> None:
        self._connection.close()

    def begin(self, before: float, script: Script) -> None:
        """Let a script begin so many seconds before `NOW`."""
        heapq.heappush(self._waiting, (NOW.timestamp() - before, len(self._waiting), script))

    def play(self) -> None:
        """Everything in the order of its times, up to `NOW`."""
        number = len(self._waiting)
        while self._waiting:
            at, _, script = heapq.heappop(self._waiting)
            if at > NOW.timestamp():
                continue
            self.clock.set(at)
            wait = next(script, None)
            if wait is not None:
                number += 1
                heapq.heappush(self._waiting, (at + wait, number, script))
        self.clock.set(NOW.timestamp())


class Session:
    """One session, as the worker that has it sees it."""

    def __init__(self, stage: Stage, id: str) -> None:
        self.stage, self.id = stage, id
        self.lease, self._beat = "", 0.0

    def create(self, agent: str, user: str, **labels: str) -> None:
        body = {"agent_type": agent, "user_id": user, "session_id": self.id, "labels": labels}
        self.stage.call("POST", "/sessions", body)

    def take(self, worker: str) -> None:
        """Take it, from whoever is silent too."""
        self.lease = ""
        self.lease = self.do("lease", worker=worker)["lease_id"]
        self._beat = self.stage.clock.seconds

    def leave(self) -> None:
        self.stage.call("DELETE", f"/sessions/{self.id}/lease/{self.lease}")
        self.lease = ""

    def beat(self) -> None:
        if self.lease:
            self.stage.call("PUT", f"/sessions/{self.id}/lease/{self.lease}")
            self._beat = self.stage.clock.seconds

    def do(self, verb: str, **body: Any) -> Any:
        if self.lease and self.stage.clock.seconds - self._beat >= BEAT:
            self.beat()
        return self.stage.call("POST", f"/sessions/{self.id}/{verb}", body, self.lease)

    def save(self, name: str, **changes: Any) -> None:
        self.do("checkpoints", name=name, **changes)

    def step(self, name: str, key: str, seconds: float, error: str = "", mode: str = "idempotent") -> Script:
        begun = self.do("steps", name=name, key=key, mode=mode)
        assert begun["state"] == "run", begun
        yield seconds
        self.do(
            f"steps/{name}/{key}", **({"error": error} if error else {"result": {"receipt": f"H-{len(key) * 1713}"}})
        )


def said(role: str, content: str, **more: str) -> Data:
    return {"role": role, "content": content, **more}


def lisbon(stage: Stage) -> Script:
    """All that a tape can show: two deaths, a rollback, two forks, a pause, a failed step."""
    trip = Session(stage, "trip-lisbon")
    trip.create("booker", "acct-17", env="prod", tier="gold")
    yield 0.6
    trip.take("runner-1:4711")
    yield 0.8
    trip.save(
        "task_received",
        data={
            "messages": [
                said("user", "Book two of us to Lisbon, 4 to 8 December. Flight and hotel, 900 euros at most.")
            ],
            "trip": {"to": "Lisbon", "from": "Hamburg", "start": "2026-12-04", "end": "2026-12-08", "people": 2},
            "budget": {"limit": 900, "left": 900},
        },
    )
    yield 0.4
    yield from trip.step("ask-model", "turn-1", 4.2)
    yield 0.3
    trip.save(
        "planned",
        append={
            "messages": [
                said("assistant", "I start with flights, since they decide the dates, and then look for a hotel.")
            ]
        },
        put={"plan": ["find flights", "choose one", "book flight", "find hotel", "book hotel", "summarise"]},
    )
    yield 0.3
    yield from trip.step("search-flights", "q-1", 5.1)
    yield 0.3
    trip.save(
        "options_found",
        append={
            "messages": [
                said("tool", "3 offers: TP-571 412 €, LH-1172 388 € (1 stop), EW-7604 455 €", name="search-flights")
            ]
        },
        put={
            "options": [
                {"id": "TP-571", "price": 412, "stops": 0, "leaves": "07:10"},
                {"id": "LH-1172", "price": 388, "stops": 1, "leaves": "09:45"},
                {"id": "EW-7604", "price": 455, "stops": 0, "leaves": "17:20"},
            ]
        },
    )
    yield 0.3
    yield from trip.step("ask-model", "turn-2", 4.4)
    yield 0.4
    trip.save(
        "chosen",
        append={
            "messages": [
                said("assistant", "TP-571 is direct and costs 24 euros more than the one with a stop. I take it.")
            ]
        },
        put={"choice": {"flight": "TP-571", "why": "direct, and 24 euros more than with a stop"}},
    )
    stage.begin(stage_seconds(stage) - 40, train(stage))
    yield 0.3
    yield from trip.step("book", "flight", 4.4, mode="at_most_once")
    yield 0.6
    trip.save(
        "booked",
        put={
            "budget": {"limit": 900, "left": 488},
            "bookings": [{"what": "flight", "id": "TP-571", "receipt": "F-88213", "price": 412}],
        },
    )
    trip.beat()  # and no more: this worker dies
    yield 25.0
    trip.take("runner-2:9120")
    yield 0.5
    yield from trip.step("book", "hotel", 5.5, mode="at_most_once")
    yield 0.3
    trip.save(
        "booked",
        append={"messages": [said("tool", "hotel Casa do Rio, 4 nights, 274 €, receipt H-20417", name="book")]},
        put={"budget": {"limit": 900, "left": 214}},
    )
    yield 0.5
    yield from trip.step("ask-model", "turn-3", 5.8)
    yield 0.4
    trip.save(
        "reviewed",
        append={
            "messages": [
                said(
                    "assistant",
                    "Flight and hotel are booked. Casa do Rio is 40 minutes from the centre by bus; is that fine?",
                )
            ]
        },
        put={"notes": "Casa do Rio is 40 minutes from the centre."},
    )
    stage.begin(stage_seconds(stage) - 12, cheap(stage))
    yield 0.7
    trip.do("pause")
    yield 0.5
    trip.leave()
    yield 60.0
    trip.do("pin", ref="chosen")
    yield 117.0
    trip.do("resume")
    yield 1.0
    trip.take("runner-2:9120")
    yield 1.2
    trip.save(
        "answered",
        append={"messages": [said("user", "Closer to the centre, please. We do not mind spending the rest.")]},
    )
    yield 5.6
    trip.do("rollback", to=booked_at(trip))
    yield 0.3
    yield from trip.step("cancel", "hotel", 5.4)
    yield 0.3
    yield from trip.step("ask-model", "turn-4", 5.2)
    yield 0.4
    trip.save(
        "chosen",
        append={
            "messages": [
                said("user", "Closer to the centre, please. We do not mind spending the rest."),
                said(
                    "assistant",
                    "I cancelled Casa do Rio. Largo do Chiado is in the centre, 4 nights for 431 euros: 57 euros stay.",
                ),
            ]
        },
        put={
            "choice": {
                "flight": "TP-571",
                "why": "direct flight; hotel two minutes from the metro",
                "hotel": "Largo do Chiado",
            }
        },
    )
    yield 0.4
    yield from trip.step("book", "hotel-2", 5.0, "SoldOut: Largo do Chiado has no room on 2026-12-06", "at_most_once")
    yield 0.6
    yield from trip.step("book", "hotel-3", 5.4, mode="at_most_once")
    yield 0.4
    trip.save(
        "booked",
        append={
            "messages": [
                said(
                    "tool",
                    "Largo do Chiado: sold out on 6 December. Baixa Rooms, 4 nights, 446 €, receipt H-20655",
                    name="book",
                )
            ]
        },
        put={
            "budget": {"limit": 900, "left": 42},
            "choice": {
                "flight": "TP-571",
                "why": "direct flight; hotel two minutes from the metro",
                "hotel": "Baixa Rooms",
            },
            "bookings": [
                {"what": "flight", "id": "TP-571", "receipt": "F-88213", "price": 412},
                {"what": "hotel", "id": "Baixa Rooms", "receipt": "H-20655", "price": 446},
            ],
        },
    )
    trip.beat()
    yield 25.0
    trip.take("runner-3:2204")
    yield 0.8
    yield from trip.step("ask-model", "turn-5", 5.2)
    yield 0.5
    trip.save(
        "summarised",
        append={
            "messages": [
                said(
                    "assistant",
                    "Done: TP-571 on 4 December, four nights at Baixa Rooms in the centre. 858 of 900 euros.",
                )
            ]
        },
        put={"summary": "Hamburg to Lisbon with TP-571, 4 nights at Baixa Rooms, 858 of 900 euros."},
    )
    yield 0.8
    yield from trip.step("mail", "summary", 5.2, mode="at_most_once")
    yield from waiting(trip)


def resting(session: Session, seconds: float) -> Script:
    """Do nothing for so long; near the end the lease is renewed meanwhile."""
    while seconds > BEAT and stage_seconds(session.stage) < MINUTE + seconds:
        session.beat()
        yield BEAT
        seconds -= BEAT
    session.beat()
    yield seconds


def booked_at(trip: Session) -> int:
    """The entry of the first checkpoint named booked."""
    log = trip.stage.call("GET", f"/sessions/{trip.id}/log?limit=100")["items"]
    return next(entry["seq"] for entry in log if entry["name"] == "booked")


def stage_seconds(stage: Stage) -> float:
    """Seconds until `NOW`."""
    return NOW.timestamp() - stage.clock.seconds


def waiting(session: Session) -> Script:
    """Hold it to the end, and do nothing."""
    while stage_seconds(session.stage) > BEAT:
        session.beat()
        yield BEAT
    session.beat()


def train(stage: Stage) -> Script:
    stage.call("POST", "/sessions/trip-lisbon/fork", {"at": "chosen", "session_id": "trip-lisbon-train"})
    fork = Session(stage, "trip-lisbon-train")
    yield 2.0
    fork.take("runner-5:3360")
    for turn, name in enumerate(("options_found", "chosen", "booked", "summarised")):
        yield from fork.step("ask-model", f"train-{turn}", 5.0)
        fork.save(name, put={"choice": {"train": "ICE 619 to Paris, TGV to Hendaye, night train", "turn": turn}})
        yield 3.0
    fork.do("complete")


def cheap(stage: Stage) -> Script:
    stage.call("POST", "/sessions/trip-lisbon/fork", {"at": "reviewed", "session_id": "trip-lisbon-cheap"})
    fork = Session(stage, "trip-lisbon-cheap")
    yield 1.0
    fork.take("runner-2:9120")
    for turn, name in enumerate(("options_found", "chosen")):
        yield from fork.step("search-flights", f"cheap-{turn}", 8.0)
        fork.save(name, put={"budget": {"limit": 900, "left": 214 - 113 * turn}})
        yield 9.0
    fork.do("fail", error="BudgetExceeded: 912 of 900 euros")


def reminder(stage: Stage) -> Script:
    """Orphaned in a step whose outcome nobody knows."""
    lesson = Session(stage, "lesson-2207")
    lesson.create("tutor", "acct-88", env="prod")
    yield 1.0
    lesson.take("runner-4:1187")
    texts = ["What do both denominators divide?", "Good. Now add the numerators.", "Nearly: look at the sign again."]
    yield 12.0
    lesson.save("asked", data={"messages": [said("user", "1/2 + 1/3?")], "turn": 0, "score": 0.93})
    for turn, (name, score) in enumerate((("hinted", 0.07), ("answered", 0.55), ("checked", 0.47)), 1):
        yield 10.0
        yield from lesson.step("ask-model", f"turn-{turn}", 18.0)
        yield 8.0
        lesson.save(name, append={"messages": [said("assistant", texts[turn - 1])]}, put={"turn": turn, "score": score})
    yield 2.0
    lesson.do("steps", name="send-mail", key="reminder", mode="at_most_once")
    lesson.beat()


TEXTS = {
    "booker": "I compare the offers by price and by the number of stops.",
    "tutor": "Good. What follows from the second line?",
    "reviewer": "The lock is taken twice in flush, and released once.",
}
NAMES = {
    "booker": ("task_received", "planned", "options_found", "chosen", "booked", "summarised"),
    "tutor": ("asked", "hinted", "answered", "checked", "graded"),
    "reviewer": ("opened", "read_diff", "tests_ran", "commented", "approved"),
}
STEPS = {"booker": "search-flights", "tutor": "ask-model", "reviewer": "run-tests"}
IDS = {"booker": "trip-{}", "tutor": "lesson-{}", "reviewer": "review-{}"}


PROSE = """The agent reads what its worker saved before and asks once more for a price that is lower than last week,
since two guests want a quiet room near the river with breakfast and a late departure if any house still has one free
on Friday or on Sunday, but never over nine hundred euros in all, while trains from the north run slow this month."""


def notes(chance: random.Random) -> str:
    """Text of some hundred to some ten thousand words, which compresses as text does."""
    number = round(chance.lognormvariate(7.3, 0.9))
    words = PROSE.split()
    return " ".join(chance.choice(words) for _ in range(number))


def work(
    stage: Stage,
    agent: str,
    id: str,
    worker: str,
    pace: float,
    names: int,
    chance: random.Random,
    end: str = "",
    dies: int = 0,
) -> Script:
    """Save `names` checkpoints, one every `pace` seconds or so, then end. After `dies` another worker goes on."""
    session = Session(stage, id)
    session.create(agent, f"acct-{chance.randrange(10, 99)}", env="test" if chance.random() < 0.25 else "prod")
    yield 0.5 + chance.random()
    session.take(worker)
    yield pace * chance.random()
    known = NAMES[agent]
    for turn in range(names):
        name = known[turn] if names <= len(known) else known[turn % len(known)]
        if turn % 3 == 1:
            yield from session.step(STEPS[agent], f"turn-{turn}", min(pace * 0.4, 6.0))
        message = said("assistant" if turn else "user", f"{TEXTS[agent]} ({turn + 1})")
        if turn:
            session.save(name, append={"messages": [message]}, put={"turn": turn, "score": round(chance.random(), 2)})
        else:
            session.save(name, data={"messages": [message], "turn": 0, "notes": notes(chance)})
        if turn + 1 == dies:
            session.beat()
            yield 26.0 + 6 * chance.random()
            session.take(f"runner-{chance.randrange(1, 6)}:9120")
        yield from resting(session, pace * (0.6 + 0.8 * chance.random()))
    if end == "completed":
        session.do("complete")
    elif end == "paused":
        session.do("pause")
        session.leave()
    elif end == "late":
        while stage_seconds(stage) > 14.5:
            session.beat()
            yield min(BEAT, stage_seconds(stage) - 14.0)
        session.beat()
    elif end:
        yield from session.step("ask-model", "last", 2.0, error=end.split(":", maxsplit=1)[0])
        session.do("fail", error=end)
    else:
        yield from waiting(session)


def nightly(stage: Stage) -> Script:
    """Longer than a tape can be: an overview of the whole, and a window."""
    session = Session(stage, "index-nightly")
    session.create("reviewer", "acct-01", env="prod")
    session.take("runner-1:4711")
    chance = random.Random(4)
    for number in range(420):
        if number == 200:
            session.beat()
            yield 41.0
            session.take("runner-2:9120")
        fails = number in {120, 301}
        if number % 40 == 0 or fails:
            yield from session.step(
                "fetch-diff", f"file-{number}", 2.0, error="Timeout: no answer in 2 s" if fails else ""
            )
        session.save(NAMES["reviewer"][number % 4], put={"files_done": number, "current": f"src/part_{number % 17}.py"})
        yield 4 + 10 * chance.random() * (1.2 if 60 < number < 140 else 0.4)
    session.do("complete")


def gone(stage: Stage) -> Script:
    """Deleted more than a week ago: gc purges it."""
    session = Session(stage, "lesson-deleted")
    session.create("tutor", "acct-11", env="test")
    session.save("asked", data={"messages": [said("user", "2/3 + 1/6?")]})
    yield HOUR
    stage.call("DELETE", "/sessions/lesson-deleted")


FAILURES = (
    "Timeout: no answer from the test runner in 600 s",
    "RateLimited: the model provider refused 4 times",
    "BudgetExceeded: 1,204 of 1,000 euros",
)


def cast(stage: Stage) -> None:
    """Who works when. Numbers of ids rise with time."""
    chance = random.Random(11)
    stage.begin(7 * MINUTE + 8, lisbon(stage))
    stage.begin(8 * MINUTE + 20, reminder(stage))
    stage.begin(
        24 * MINUTE, work(stage, "reviewer", "review-8812", "runner-3:2204", 25, 4, chance, FAILURES[0], dies=2)
    )
    stage.begin(
        39.5 * MINUTE, work(stage, "booker", "trip-oslo-311", "runner-1:4711", 20, 5, chance, FAILURES[1], dies=3)
    )
    stage.begin(
        57 * MINUTE, work(stage, "tutor", "lesson-2199", "runner-2:9120", 30, 5, chance, "MissingAnswer: asked 3 times")
    )
    stage.begin(8 * MINUTE, work(stage, "booker", "trip-cairo-100", "runner-1:4711", 15, 22, chance, "late"))
    stage.begin(10 * HOUR, nightly(stage))
    stage.begin(41 * DAY, work(stage, "reviewer", "index-september", "runner-1:4711", 6, 64, chance, "completed"))
    stage.begin(12 * DAY, gone(stage))
    towns = ("kyoto-121", "rome-142", "lima-163", "porto-170", "quito-188")
    for n, town in enumerate(towns):
        stage.begin(
            (11.1 + 9 * n) * MINUTE,
            work(stage, "booker", f"trip-{town}", f"runner-{n % 4 + 1}:{4711 + n}", 22 + 9 * n, 90, chance),
        )
    for n in range(4):
        stage.begin(
            (13.4 + 7 * n) * MINUTE,
            work(stage, "reviewer", f"review-{8788 - 9 * n}", f"runner-{n % 3 + 2}:9120", 30 + 8 * n, 60, chance),
        )
    for n in range(2):
        stage.begin(
            (26.7 + 11 * n) * MINUTE,
            work(stage, "tutor", f"lesson-{2198 - 3 * n}", f"runner-{5 - n}:3360", 48, 60, chance),
        )
    for n in range(3):
        stage.begin(
            (18.8 + 40 * n) * MINUTE,
            work(stage, "tutor", f"lesson-{2201 - 9 * n}", "runner-2:9120", 40, 3, chance, "paused"),
        )
    for day in range(44):
        weekend = (NOW - dt.timedelta(days=day)).weekday() > 4
        for _ in range(1 if weekend else chance.randrange(2, 4)):
            agent = chance.choice(("booker", "booker", "tutor", "reviewer"))
            before = day * DAY + chance.triangular(1.2, 9, 4) * HOUR
            names = len(NAMES[agent])
            fails = chance.random() < 0.1
            pace = chance.lognormvariate(2.6, 0.8)
            name = IDS[agent].format(f"{4900 - round(before / 3000):04d}-{chance.randrange(16, 256):x}")
            script = work(
                stage,
                agent,
                name,
                f"runner-{chance.randrange(1, 6)}:9120",
                pace,
                chance.randrange(2, names) if fails else names,
                chance,
                chance.choice(FAILURES) if fails else "completed",
            )
            stage.begin(before, script)


def make(store: Path, clock: Clock) -> None:
    clock.set(NOW.timestamp() - 45 * DAY)
    with serving(store, clock) as url:
        stage = Stage(url, clock)
        cast(stage)
        stage.play()
        stage.close()

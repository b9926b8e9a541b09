"""The entries of one session as a manager keeps them: frames, recipes and digests by seq."""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

from saveslot import codec
from saveslot.codec.excerpt import Excerpt, Header, Wanting, excerpt
from saveslot.values.recipe import MAX_RECIPE, MAX_SHORT, chain


class Log:
    def __init__(self) -> None:
        self.frames: dict[int, bytes] = {}
        self.bases: dict[int, int] = {}
        self.heads: list[tuple[bytes, bytes, Any]] = [(b"", b"", {})]  # recipe, digest, what must come back
        self.state = codec.State()
        self.read_bases = 0  # by the last partial read

    @property
    def seq(self) -> int:
        return len(self.heads)

    def take(self, written: codec.Written, value: Any) -> codec.Written:
        if written.frame is not None:
            self.frames[self.seq], self.bases[self.seq] = written.frame, written.base
        self.state = written.state
        self.heads.append((self.state.recipe.pack(self.seq), self.state.digest, value))
        return written

    def write(self, value: dict[str, Any]) -> codec.Written:
        return self.take(codec.write(self.state, value, self.seq, "data"), deepcopy(value))

    def append(self, items: dict[str, list[Any]]) -> codec.Written:
        return self.change(append=items)

    def change(self, **edits: Any) -> codec.Written:
        after = dict(self.heads[-1][2]) | edits.get("put", {})
        for key, count in edits.get("cut", {}).items():
            after[key] = after[key][: len(after[key]) - count]
        for key, more in edits.get("append", {}).items():
            after[key] = after.get(key, []) + more
        for key in edits.get("drop", ()):
            del after[key]
        return self.take(codec.change(self.state, codec.Edits(**edits), self.seq), after)

    def other(self) -> None:
        """Add an entry of another kind, whose frames do not belong to this state."""
        packed, digest, value = self.heads[-1]
        self.heads.append((codec.Recipe.unpack(packed, self.seq - 1).pack(self.seq), digest, value))

    def recipe(self, seq: int) -> codec.Recipe:
        return codec.Recipe.unpack(self.heads[seq][0], seq)

    def chain(self, seq: int) -> list[int]:
        return chain(self.recipe(seq).base, self.bases)

    def shorts(self, seq: int) -> list[int]:
        ranges = self.recipe(seq).ranges
        return [at for at in sorted(self.frames) if any(first <= at <= last for first, last in ranges)]

    def seqs(self, seq: int) -> list[int]:
        return self.chain(seq) + self.shorts(seq)

    def read(self, seq: int) -> codec.State:
        recipe, seqs = self.recipe(seq), self.seqs(seq)
        assert len(self.shorts(seq)) == recipe.short <= MAX_SHORT
        assert len(self.heads[seq][0]) <= MAX_RECIPE
        return codec.rebuild([self.frames[at] for at in seqs], self.heads[seq][1], "it", recipe, seqs)

    def part(self, seq: int, keys: Any = None, last: Any = None) -> dict[str, Any]:
        """Read a part of the state as of an entry."""
        recipe, digests = self.recipe(seq), {at: head[1] for at, head in enumerate(self.heads)}
        headers = {at: Header(self.bases[at], digests[at]) for at in self.chain(seq)}
        if not recipe:
            return {}
        found = Excerpt(recipe, digests[seq], "it", headers, [self.frames[at] for at in self.shorts(seq)])
        self.read_bases = 0
        while True:
            try:
                return found.value(keys, last or {})
            except Wanting as wanting:
                if not wanting.seqs:
                    found.add_chain(headers)
                for at in wanting.seqs:
                    self.read_bases += 1
                    found.add(at, self.frames[at])

    def rollback(self, seq: int) -> None:
        """Add an entry with an old recipe; the next one builds on the rebuilt state."""
        packed, digest, value = self.heads[seq]
        self.state = self.read(seq)
        self.state.tip = self.seq
        self.heads.append((codec.Recipe.unpack(packed, seq).pack(self.seq), digest, value))

    def resume(self) -> None:
        """Continue from the head in another process."""
        tip = self.state.tip
        self.state = self.read(self.seq - 1)
        self.state.tip = tip

    def thin(self, kept: set[int]) -> None:
        """Empty every frame that no kept entry is rebuilt from."""
        needed = {at for seq in kept for at in self.seqs(seq)}
        for seq in set(self.frames) - needed:
            del self.frames[seq]

    def check(self, seqs: Any = None, *, parts: bool = True) -> None:
        dice = random.Random(self.seq)
        for seq in range(self.seq) if seqs is None else seqs:
            value = self.heads[seq][2]
            state = self.read(seq)
            assert exact(state.value()) == exact(value), seq
            if not parts:
                continue
            keys = dice.sample(list(value), min(len(value), 2)) if dice.random() < 0.7 else None
            last = {
                key: dice.randrange(30) for key, item in value.items() if isinstance(item, list) and dice.random() < 0.8
            }
            if keys is not None:
                last = {key: count for key, count in last.items() if key in keys}
            part, expected = self.part(seq, keys, last), excerpt(state, keys, last)
            if keys is not None:  # in any order
                part, expected = dict(sorted(part.items())), dict(sorted(expected.items()))
            assert exact(part) == exact(expected), (seq, keys, last)


def exact(value: Any) -> str:
    return repr(value)  # tells 1, 1.0 and True apart, and shows the order of keys

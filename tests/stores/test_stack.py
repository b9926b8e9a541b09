"""What a manager writes to, a vault over metrics over a store, keeps every promise of a store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from saveslot.codec import Keyring
from saveslot.session.vault import Vault
from saveslot.stores import Store
from saveslot.stores.around.metered import metered
from saveslot.stores.around.wrapper import PassingStore
from saveslot.testing import Clock, StoreConformance
from saveslot.values.log import Group, Verdict
from tests.stores.test_conformance import TestMemory as OnMemory, TestSqlite as OnSqlite

KEYS = Keyring.of(bytes(range(32)))


class Copying(PassingStore):
    """The vault writes links into the entries it is given; the suite sends some of its groups again."""

    async def append(self, groups: Sequence[Group], *, together: bool = False) -> list[Verdict]:
        copies = [replace(group, entries=[replace(entry) for entry in group.entries]) for group in groups]
        return await self._inner.append(copies, together=together)


def stack(store: Store, keyring: Keyring | None = None) -> Store:
    return Copying(Vault(metered(store), keyring))


class Stack(StoreConformance):
    # A link needs the one before it: a manager sends the next entry of a session when the last one was answered.
    test_pipelined_entries_land_in_order = None


class TestOverMemory(Stack, OnMemory):
    async def open(self, folder: Path, clock: Clock) -> Store:
        if folder not in self.stores:
            self.stores[folder] = stack(await super().open(folder, clock))
        return self.stores[folder]


class TestOverSqlite(Stack, OnSqlite):
    async def open(self, folder: Path, clock: Clock) -> Store:
        return stack(await super().open(folder, clock))


class Sealed(Stack):
    # A sealed frame, note or body takes more bytes than were sent.
    test_entries_returns_every_field_as_appended = None
    test_find_ended_and_deleted_sessions_by_age = None
    test_entries_without_frames_keep_their_size = None
    test_a_sample_holds_the_newest_logs = None
    test_empty_drops_frames_only = None
    # Notes and bodies begin with a checksum of 16 bytes, which is all that an emptied note keeps; the suite's do not.
    test_append_changes_the_row_with_its_entries = None
    test_bytes_are_exact = None
    test_only_stale_judges_each_group_of_a_call = None
    test_namespaces_never_see_each_other = None
    test_a_recreated_id_starts_a_new_log = None
    test_empty_with_notes_keeps_their_checksums = None
    test_none_and_empty_frames_and_notes_differ = None
    # `find` shows bodies as they are stored, and `empty` takes such bodies.
    test_a_body_is_replaced_if_it_is_still_the_same = None
    test_create_stores_the_given_row = None
    test_an_erased_row_has_no_user_and_labels = None
    test_the_owner_is_set_and_cleared_with_the_lease = None
    test_labels_of_entries_are_replaced_with_a_body = None
    # Labels are shown as they are stored: hidden.
    test_labels_of_entries_are_read_if_asked_for = None


class TestSealedOverMemory(Sealed, OnMemory):
    async def open(self, folder: Path, clock: Clock) -> Store:
        if folder not in self.stores:
            self.stores[folder] = stack(await super().open(folder, clock), KEYS)
        return self.stores[folder]


class TestSealedOverSqlite(Sealed, OnSqlite):
    async def open(self, folder: Path, clock: Clock) -> Store:
        return stack(await super().open(folder, clock), KEYS)

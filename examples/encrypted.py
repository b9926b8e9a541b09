"""Encryption: what is on the disk, who can read it, and how to change the key.

python examples/encrypted.py    # needs: pip install 'saveslot[crypto]'
"""

from __future__ import annotations

import asyncio
import base64
import os
import tempfile
from pathlib import Path

import saveslot

NOTE = "Anna’s diagnosis"


def new_key() -> str:
    """Return 32 random bytes as text, as `saveslot key new` does. Keep it outside the database."""
    return base64.b64encode(os.urandom(32)).decode()


async def main() -> None:
    old, new = {"2026": new_key()}, {"2027": new_key()}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "notes.db"
        url = file

        async with saveslot.open(url, encryption_key=old) as sessions:
            await sessions.create_session("doctor", session_id="visit-1")
            async with sessions.hold("visit-1") as held:
                await held.checkpoint("noted", {"note": NOTE})
            print("with the key:", await sessions.get_data("visit-1"))
        print("on the disk:", "readable" if NOTE.encode() in file.read_bytes() else "sealed")

        async with saveslot.open(url) as sessions:
            try:
                await sessions.get_data("visit-1")
            except saveslot.KeyMissing as error:
                print(f"without a key: {error.code}, it needs {error.key_id}")

        # The new key first: it seals new sessions. Rotation rewraps the keys of old ones, and rewrites no content.
        async with saveslot.open(url, encryption_key={**new, **old}) as sessions:
            print("rotated:", await sessions.rotate_keys())
        async with saveslot.open(url, encryption_key=new) as sessions:
            print("with the new key alone:", await sessions.get_data("visit-1"))


if __name__ == "__main__":
    asyncio.run(main())

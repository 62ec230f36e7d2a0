"""Which SQLite file is this node's datastore, remembered so that a lost one is not taken for new.

An agent that found an empty datastore would take the routes of running pods away and hand their
addresses out again. So the file's id is kept beside it, in the agent's state directory, from the
first time it was open; from then on a missing file, or another, is an error and never a start
from nothing. Other datastores have no id here.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import UUID

from cni_plugin.durable import replace_file
from libtortie.datastore.open import DatastoreConfig, open_datastore
from libtortie.datastore.port import Datastore
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.errors import InvalidInput, Malformed, Unavailable
from libtortie.files import read_text

SQLITE = "sqlite"


def open_remembered(wanted: DatastoreConfig, memory: Path) -> Datastore:
    """The datastore that `memory` names; at the first time whatever is there, or a new one.

    Raises `Malformed` for a file that was lost or exchanged, and for an unreadable memory;
    `Unavailable` also when the id cannot be remembered; else as `open_datastore`.
    """
    if wanted.type != SQLITE:
        return open_datastore(wanted)
    known = read_id(memory)
    store = open_datastore(replace(wanted, create=True, known_id=known))
    _remember(store, memory, known)
    return store


def init_datastore(wanted: DatastoreConfig, memory: Path) -> str:
    """Make the file, or take the one that is there, whatever was remembered; says what it did.

    What a file holds is never touched. Raises `InvalidInput` for another datastore than SQLite.
    """
    if wanted.type != SQLITE:
        raise InvalidInput(f"datastore_type {wanted.type}: only a SQLite datastore is made here")
    made = not wanted.sqlite_path.exists()
    store = open_datastore(replace(wanted, create=True, known_id=""))
    try:
        now = _remember(store, memory, known="")
    finally:
        store.close()
    did = "made, empty" if made else "accepted as it is"
    return f"{wanted.sqlite_path}: {did}; this node's datastore is {now} from now on"


def read_id(memory: Path) -> str:
    """The remembered id, "" when none ever was. Raises `Malformed`, `Unavailable`."""
    try:
        text = read_text(memory).strip()
        return str(UUID(text))
    except FileNotFoundError:
        return ""
    except ValueError as error:
        raise Malformed(
            f"{memory}: no datastore id: if the datastore is the right one, remove this file"
        ) from error
    except OSError as error:
        raise Unavailable(f"{memory}: {error.strerror}") from error


def _remember(store: Datastore, memory: Path, known: str) -> str:
    assert isinstance(store, SqliteDatastore)  # its type was asked for
    if store.id != known:
        try:
            replace_file(memory, f"{store.id}\n".encode(), 0o600)
        except OSError as error:
            store.close()
            raise Unavailable(f"{memory}: {error.strerror}: the id must be kept") from error
    return store.id

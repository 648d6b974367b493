"""The public schema of a log, and the file it lives in: made, opened, recognised or refused.

``docs/log-schema.md`` explains every column; a test holds the two together. What many events say alike is
kept once, in ``event_shapes``, and what few say at all in ``event_extras``; the views ``events`` and
``blocks`` put them together; what can be asked of them is ``sinks/views``. Version 2 only adds to version 1:
a log of version 1 is read as if it had that, and is brought to 2 when it is written to. A file of any other
version is refused, never migrated by guess.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import duckdb

from kvbus.draft import beside
from kvbus.errors import LogError, LogLockedError, LogVersionError
from sinks.private_files import private_files
from sinks.question import DAMAGED
from sinks.spilled import folder_of
from sinks.views import ADDED, VIEWS

VERSION: Final = 2
READABLE: Final = ("1", "2")
ROW_GROUP: Final = 4096
"""Rows that are compressed together, of every table. Whole groups of a transaction go to the file and not
through the write-ahead log, so small ones are written twice less often (fastest of 4096, 8192 and 16384 with
4096 batches a transaction and the checkpoint counted in; without it, larger ones insert faster)."""

STORAGE: Final = "v1.2.0"
"""The oldest DuckDB that reads the file; zstd for payloads came with it."""

TABLES: Final = """
CREATE TABLE meta (key VARCHAR, value VARCHAR);
CREATE TABLE sources (
    source_id INTEGER, source VARCHAR, topic VARCHAR, topic_raw BLOB, rank INTEGER, instance INTEGER);
CREATE TABLE epochs (
    marker UBIGINT, next_position UBIGINT, source_id INTEGER, epoch INTEGER, because VARCHAR,
    incarnation VARCHAR, began_ns BIGINT);
CREATE TABLE batches (
    position UBIGINT, source_id INTEGER, epoch INTEGER, seq UBIGINT, topic VARCHAR, ts DOUBLE,
    received_ns BIGINT, rank INTEGER, replayed BOOLEAN, dialect VARCHAR, event_count UINTEGER,
    unknown_keys BIGINT, error VARCHAR, payload BLOB USING COMPRESSION zstd);
CREATE TABLE event_rows (
    position UBIGINT, event UINTEGER, shape UINTEGER, hashes UBIGINT[], parent_hash UBIGINT,
    token_count UINTEGER, emit_seq UBIGINT);
CREATE TABLE event_shapes (
    shape UINTEGER, kind VARCHAR, medium VARCHAR, medium_raw VARCHAR, block_size BIGINT, group_idx BIGINT,
    kv_cache_spec_kind VARCHAR, kv_cache_spec_sliding_window BIGINT, lora_id BIGINT, lora_name VARCHAR,
    locality VARCHAR, ownership VARCHAR, reason VARCHAR);
CREATE TABLE event_extras (
    position UBIGINT, event UINTEGER, session_id VARCHAR, cache_salt VARCHAR, extra VARCHAR, error VARCHAR);
CREATE TABLE losses (
    marker UBIGINT, next_position UBIGINT, source_id INTEGER, epoch INTEGER, first_seq UBIGINT,
    last_seq UBIGINT, reason VARCHAR, noticed_ns BIGINT);
CREATE TABLE strays (
    marker UBIGINT, next_position UBIGINT, source_id INTEGER, epoch INTEGER, seq UBIGINT, reason VARCHAR,
    received_ns BIGINT, payload BLOB);
"""

TABLES_2: Final = """
CREATE TABLE violation_rows (
    number UBIGINT, next_position UBIGINT, rule VARCHAR, id VARCHAR, because VARCHAR, count UBIGINT,
    found_ns BIGINT);
CREATE TABLE witnesses (
    number UBIGINT, nth UINTEGER, source VARCHAR, topic VARCHAR, rank INTEGER, instance INTEGER,
    epoch INTEGER, seq UBIGINT, event UINTEGER, position UBIGINT);
CREATE TABLE capacities (marker UBIGINT, next_position UBIGINT, medium VARCHAR, blocks UBIGINT);
"""
"""What version 2 adds, apart from views."""

_EMPTY: Final = re.sub(
    r"CREATE TABLE (\w+) \((.*?)\);",
    lambda table: (
        f"CREATE TEMP VIEW {table[1]} AS SELECT * FROM (SELECT "
        + ", ".join(
            f"NULL::{kind} AS {name}" for name, kind in (column.split() for column in table[2].split(","))
        )
        + ") WHERE false;"
    ),
    TABLES_2,
    flags=re.DOTALL,
)
"""Nothing in place of those tables."""

_HELD_BY = re.compile(r"lock.*\(PID (\d+)\)", re.IGNORECASE | re.DOTALL)


def connect(*, threads: int, memory_limit: str) -> duckdb.DuckDBPyConnection:
    """A DuckDB in memory that downloads nothing; logs are attached to it."""
    return duckdb.connect(
        ":memory:",
        config={
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "python_enable_replacements": "false",
            "threads": str(threads),
            "memory_limit": memory_limit,
        },
    )


def attach(connection: duckdb.DuckDBPyConnection, path: Path, *, read_only: bool) -> int:
    """Attach the log at ``path`` under the name ``log``, make it the default, and check that it is one.

    Returns its version; one of version 1 that may be written to is brought to this one. After it no statement
    of this connection can touch another file, or change a setting of the process: a SELECT that switches
    DuckDB's own logging on would end the recorder that it asks. Raises ``LogLockedError`` where another
    process holds it, ``LogVersionError`` for another schema, ``LogError`` for anything else that is not a
    log.
    """
    options = "READ_ONLY" if read_only else f"ROW_GROUP_SIZE {ROW_GROUP}"
    try:
        connection.execute(f"ATTACH {_quoted(path)} AS log (TYPE duckdb, {options})")
        connection.execute("USE log")
        connection.execute(f"SET temp_directory = {_quoted(folder_of(path))}")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
    except duckdb.Error as error:
        raise refusal(path, error) from error
    version = _check_version(connection, path)
    if version != VERSION and not read_only:
        _step_up(connection, path)
        return VERSION
    return version


def create(path: Path, *, made_by: str) -> None:
    """Make an empty log at ``path``, mode 0600, whole at once; one that is there already is left alone.

    It is made under another name first: whoever opens ``path`` finds nothing or a log.
    """
    draft = beside(path)
    connection = connect(threads=1, memory_limit="256MB")
    try:
        with private_files():
            connection.execute(
                f"ATTACH {_quoted(draft)} AS log (ROW_GROUP_SIZE {ROW_GROUP}, STORAGE_VERSION '{STORAGE}')"
            )
            connection.execute("USE log")
            connection.execute(TABLES + TABLES_2 + VIEWS + ADDED)
            connection.execute(
                "INSERT INTO meta VALUES ('schema_version', ?), ('made_by', ?)", [str(VERSION), made_by]
            )
            connection.close()
        _give_name(draft, path)
    except (duckdb.Error, OSError) as error:
        raise refusal(path, error, draft=draft) from error
    finally:
        connection.close()
        for left in (draft, draft.with_name(draft.name + ".wal")):
            left.unlink(missing_ok=True)


def _give_name(draft: Path, path: Path) -> None:
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        return
    except OSError:  # a file system without hard links
        if not path.exists():
            draft.rename(path)


def add_views(connection: duckdb.DuckDBPyConnection) -> None:
    """Let a connection to a log of version 1 ask as if it were of this one: views of its own, seen by nobody
    else.
    """
    connection.execute(_EMPTY + ADDED.replace("CREATE VIEW", "CREATE TEMP VIEW"))


def _step_up(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Bring a log of version 1 to this one, whole or not at all."""
    try:
        connection.execute("BEGIN TRANSACTION")
        connection.execute(TABLES_2 + ADDED)
        connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", [str(VERSION)])
        connection.execute("COMMIT")
    except duckdb.Error as error:
        raise refusal(path, error) from error


def _check_version(connection: duckdb.DuckDBPyConnection, path: Path) -> int:
    try:
        rows = connection.execute("SELECT value FROM log.meta WHERE key = 'schema_version'").fetchall()
    except (duckdb.CatalogException, duckdb.BinderException):  # it has no such table, or another one
        rows = []
    except duckdb.Error as error:
        raise damaged(path, error) from error
    return check_version(rows[0][0] if rows else None, path)


def check_version(found: str | None, path: Path) -> int:
    """The version that ``found`` (None: no such entry) says; raise unless this kvbus reads it."""
    if found is None:
        raise LogError(
            f"{path} is a DuckDB file, but not a kvbus log",
            next_step="Name a log that kvbus made; to write a new one, a file that does not exist yet.",
        )
    if found not in READABLE:
        newer = found.isdecimal() and int(found) > VERSION
        raise LogVersionError(
            f"{path} has log schema {found}, this kvbus reads {VERSION}",
            next_step="Use a newer kvbus."
            if newer
            else "Export it with the kvbus that wrote it, and import that.",
        )
    return int(found)


def refusal(path: Path, error: Exception, *, draft: Path | None = None) -> LogError:
    """What DuckDB or the system says about a file, or about its ``draft``, in kvbus's words."""
    text = str(error) if draft is None else str(error).replace(str(draft), str(path))
    held = _HELD_BY.search(text)
    if "Could not set lock" in text or "file handle conflict" in text:
        holder = f"process {held[1]}" if held else "this process" if "conflict" in text else "another process"
        return LogLockedError(
            f"{path} is held by {holder}, which does not answer on {path.name}.sock",
            next_step="Wait until it ends, or stop it (SIGTERM): one process at a time can write a log.",
        )
    if "not a valid DuckDB database" in text:
        return LogError(
            f"{path} is not a DuckDB file" + (" (it is empty)" if _is_empty(path) else ""),
            next_step="Name a log that kvbus made; to write a new one, a file that does not exist yet.",
        )
    return LogError(
        f"{path} cannot be opened: {text.splitlines()[0] if text else repr(error)}",
        next_step="Check that the folder exists, its permissions and the space left on the disk.",
    )


def damaged(path: Path, error: Exception) -> LogError:
    """What to say of a log that cannot be read, or contradicts itself."""
    what = f"no source {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
    return LogError(f"{path} is damaged: {what}", next_step=DAMAGED)


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:
        return False


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"

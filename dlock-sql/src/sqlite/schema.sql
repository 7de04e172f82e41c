-- SQLite: the lock table of dlock, version 1. Run it once; to run it again changes nothing.

-- Readers and writers do not block each other with a write-ahead log. The database keeps the setting.
PRAGMA journal_mode = WAL;

CREATE TABLE IF NOT EXISTS "{table}" (
    key BLOB NOT NULL PRIMARY KEY,
    token BLOB,
    fence INTEGER NOT NULL,
    boot BLOB NOT NULL,
    expires INTEGER NOT NULL,
    holder TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The table's own row.
INSERT OR IGNORE INTO "{table}" (key, token, fence, boot, expires, holder)
VALUES (x'', NULL, 0, x'', 0, 'dlock table, version 1');

-- Fences keep growing whoever deletes rows, also an administrator by hand.
CREATE TRIGGER IF NOT EXISTS "{table}_keeps_fences" AFTER DELETE ON "{table}" BEGIN
    UPDATE "{table}" SET fence = max(fence, old.fence) WHERE key = x''; END;

CREATE TRIGGER IF NOT EXISTS "{table}_keeps_mark" BEFORE DELETE ON "{table}" WHEN old.key = x''
BEGIN SELECT RAISE(IGNORE); END;

-- SQLite knows no rights: whoever may write the file and its directory can take any lock. dlock makes them for their
-- owner alone (mode 600).

-- PostgreSQL: the lock table of dlock, version 1. Run it once; to run it again changes nothing.

-- A row is changed at each acquire and release: half of each page is left free, so that changes stay in it.
CREATE TABLE IF NOT EXISTS {table} (
    key bytea NOT NULL PRIMARY KEY,
    token bytea,
    fence bigint NOT NULL,
    expires timestamptz NOT NULL,
    awaited boolean NOT NULL DEFAULT false,
    holder text NOT NULL
) WITH (fillfactor = 50);

-- The table's own row.
INSERT INTO {table} (key, token, fence, expires, holder)
VALUES ('', NULL, 0, '-infinity', 'dlock table, version 1') ON CONFLICT DO NOTHING;

-- The rights of a service, here of the user app. DELETE is for readers, permits, waiters in line and `prune`.
-- GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO app;

-- MariaDB and MySQL: the lock table of dlock, version 1. Run it once; to run it again changes nothing.

CREATE TABLE IF NOT EXISTS {table} (
    `key` VARBINARY(513) NOT NULL PRIMARY KEY,
    token BINARY(16),
    fence BIGINT NOT NULL,
    expires BIGINT NOT NULL,
    holder VARBINARY(2048) NOT NULL
) ENGINE = InnoDB;

-- The table's own row.
INSERT IGNORE INTO {table} (`key`, token, fence, expires, holder)
VALUES (X'', NULL, 0, 0, 'dlock table, version 1');

-- The rights of a service, here of the user app. DELETE is for readers, permits, waiters in line and `prune`.
-- GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO 'app'@'%';

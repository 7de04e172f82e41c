-- MariaDB and MySQL: procedures by which other clients take the lock rows of dlock, version 1.
-- Call each outside a transaction, with autocommit: a lock that is not committed is none. Each answers with one row.
-- For the command line clients, which know DELIMITER; other clients run what stands between two // as a statement each.

DELIMITER //

-- Refuses what no lock can be taken with; each of the others begins with it.
DROP PROCEDURE IF EXISTS dlock_check //
CREATE PROCEDURE dlock_check(mine VARBINARY(512)) NO SQL SQL SECURITY INVOKER
BEGIN
    IF @@SESSION.autocommit = 0 THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'dlock: autocommit is off, so that no lock would be committed';
    END IF;
    IF COALESCE(LENGTH(mine), 0) <> 16 THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'dlock: `mine` must be 16 new random bytes';
    END IF;
END //

-- Takes the lock, or adopts what an earlier call with the same token took: the fence, or null while somebody else has it.
-- `mine` is 16 random bytes, new for each acquire; `who` is shown to whoever asks who has it.
DROP PROCEDURE IF EXISTS dlock_take //
CREATE PROCEDURE dlock_take(k VARBINARY(512), mine VARBINARY(512), lease_ms BIGINT, who VARBINARY(2048))
    MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    CALL dlock_check(mine);
    IF LENGTH(k) > 0 AND NOT EXISTS (SELECT 1 FROM {table} WHERE `key` = k) THEN
        INSERT IGNORE INTO {table} (`key`, token, fence, expires, holder)
        SELECT k, NULL, COALESCE(MAX(mark.fence), 0), 0, X'' FROM {table} AS mark WHERE mark.`key` = X'';
    END IF;
    UPDATE {table} SET
        fence = LAST_INSERT_ID(IF(token = mine AND expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
            fence, GREATEST(fence + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))))),
        token = mine, holder = who,
        expires = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + lease_ms * 1000
    WHERE `key` = k AND LENGTH(k) > 0 AND (token IS NULL OR token = mine AND LEFT(holder, 7) <> 'left=1 '
        OR expires <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)));
    SELECT IF(ROW_COUNT() = 1, LAST_INSERT_ID(), NULL) AS fence;
END //

-- Extends the lease from now: 0 says that the lock is lost.
DROP PROCEDURE IF EXISTS dlock_renew //
CREATE PROCEDURE dlock_renew(k VARBINARY(512), mine VARBINARY(512), lease_ms BIGINT)
    MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    CALL dlock_check(mine);
    UPDATE {table} SET expires = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + lease_ms * 1000
    WHERE `key` = k AND token = mine AND LEFT(holder, 7) <> 'left=1 '
        AND expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    SELECT CAST(ROW_COUNT() = 1 AS SIGNED) AS renewed;
END //

-- Releases the lock: 0 says that it was lost before.
DROP PROCEDURE IF EXISTS dlock_release //
CREATE PROCEDURE dlock_release(k VARBINARY(512), mine VARBINARY(512)) MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE running BIGINT DEFAULT 0;
    CALL dlock_check(mine);
    UPDATE {table} SET
        token = IF(LAST_INSERT_ID(expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) > 1, token, NULL)
    WHERE `key` = k AND token = mine AND LEFT(holder, 7) <> 'left=1 ';
    IF ROW_COUNT() = 1 THEN
        SET running = LAST_INSERT_ID();
    END IF;
    SELECT running AS released;
END //

-- Hands the lock over: the token of the baton, 32 hexadecimal digits, or null: the lock was lost before. The caller has
-- it no more, and nobody else gets it for so long. After a lost reply it can be called again, which lengthens nothing.
DROP PROCEDURE IF EXISTS dlock_hand_over //
CREATE PROCEDURE dlock_hand_over(k VARBINARY(512), mine VARBINARY(512), at_most_ms BIGINT)
    MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE baton BINARY(16) DEFAULT UNHEX(CONCAT(
        LPAD(HEX(~CAST(CONV(HEX(LEFT(mine, 8)), 16, 10) AS UNSIGNED)), 16, '0'),
        LPAD(HEX(~CAST(CONV(HEX(RIGHT(mine, 8)), 16, 10) AS UNSIGNED)), 16, '0')));
    CALL dlock_check(mine);
    UPDATE {table} SET
        holder = IF(token = mine, LEFT(CONCAT('left=1 ', holder), 2048), holder),
        expires = LEAST(IF(token = mine, 9223372036854775807, expires),
            TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + at_most_ms * 1000),
        token = baton
    WHERE `key` = k AND (token = baton OR token = mine AND LEFT(holder, 7) <> 'left=1 ')
        AND expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    -- For some clients a row counts only when it changes, which it does not where it was handed over before.
    SELECT IF(ROW_COUNT() = 1 OR EXISTS (SELECT 1 FROM {table} WHERE `key` = k AND token = baton
        AND expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))), LOWER(HEX(baton)), NULL) AS baton;
END //

-- Takes over what was handed over with a baton of this token, or adopts what an earlier call took: the fence, or null
-- where it was taken over before, or its time is over. `mine` and `who` are those of `dlock_take`.
DROP PROCEDURE IF EXISTS dlock_take_over //
CREATE PROCEDURE dlock_take_over(
    k VARBINARY(512), baton CHAR(32), mine VARBINARY(512), lease_ms BIGINT, who VARBINARY(2048))
    MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    CALL dlock_check(mine);
    IF mine = UNHEX(baton) THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'dlock: `mine` must be 16 new random bytes, not those of the baton';
    END IF;
    UPDATE {table} SET
        fence = LAST_INSERT_ID(IF(token = mine, fence,
            GREATEST(fence + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))))),
        holder = CONCAT(LEFT(who, 2002), RIGHT(holder, IF(SUBSTRING(holder, -46, 6) = ' line=', 46,
            IF(RIGHT(holder, 8) = ' awaited', 8, 0)))),
        token = mine, expires = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + lease_ms * 1000
    WHERE `key` = k AND (token = mine OR token = UNHEX(baton))
        AND expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    SELECT IF(ROW_COUNT() = 1, LAST_INSERT_ID(), NULL) AS fence;
END //

DELIMITER ;

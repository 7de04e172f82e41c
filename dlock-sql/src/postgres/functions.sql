-- PostgreSQL: functions by which other clients take the lock rows of dlock, version 1.
-- Call each outside a transaction: a lock that is not committed is none.

-- Takes the lock, or adopts what an earlier call with the same token took: the fence, or null while somebody else has it.
-- `mine` is 16 random bytes, new for each acquire; `who` is shown to whoever asks who has it.
CREATE OR REPLACE FUNCTION dlock_take(k text, mine bytea, lease interval, who text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    answer bigint;
BEGIN
    IF length(mine) IS DISTINCT FROM 16 THEN
        RAISE EXCEPTION 'dlock: `mine` must be 16 new random bytes';
    END IF;
    INSERT INTO {table} AS held (key, token, fence, expires, holder)
    SELECT convert_to(k, 'UTF8'), mine,
        greatest((extract(epoch FROM clock_timestamp()) * 1000000)::bigint, (SELECT fence + 1 FROM {table} WHERE key = '')),
        clock_timestamp() + lease, who
    WHERE k <> ''
    ON CONFLICT (key) DO UPDATE SET
        fence = CASE WHEN held.token = excluded.token AND held.expires > clock_timestamp()
            THEN held.fence ELSE greatest(held.fence + 1, excluded.fence) END,
        token = excluded.token, expires = excluded.expires, holder = excluded.holder,
        awaited = held.awaited AND held.token IS NOT NULL
    WHERE held.token IS NULL OR held.token = excluded.token AND left(held.holder, 7) <> 'left=1 '
        OR held.expires <= clock_timestamp()
    RETURNING fence INTO answer;
    RETURN answer;
END $$;

-- Extends the lease from now: false says that the lock is lost.
CREATE OR REPLACE FUNCTION dlock_renew(k text, mine bytea, lease interval) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF length(mine) IS DISTINCT FROM 16 THEN
        RAISE EXCEPTION 'dlock: `mine` must be 16 new random bytes';
    END IF;
    UPDATE {table} SET expires = clock_timestamp() + lease
    WHERE key = convert_to(k, 'UTF8') AND token = mine AND left(holder, 7) <> 'left=1 ' AND expires > clock_timestamp();
    RETURN FOUND;
END $$;

-- Releases the lock: false says that it was lost before.
CREATE OR REPLACE FUNCTION dlock_release(k text, mine bytea) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    running boolean;
BEGIN
    IF length(mine) IS DISTINCT FROM 16 THEN
        RAISE EXCEPTION 'dlock: `mine` must be 16 new random bytes';
    END IF;
    UPDATE {table} SET token = NULL
    WHERE key = convert_to(k, 'UTF8') AND token = mine AND left(holder, 7) <> 'left=1 '
    RETURNING expires > clock_timestamp() INTO running;
    RETURN coalesce(running, false);
END $$;

-- Hands the lock over: the token of the baton, 32 hexadecimal digits, or null: the lock was lost before. The caller has
-- it no more, and nobody else gets it for so long. After a lost reply it can be called again, which lengthens nothing.
CREATE OR REPLACE FUNCTION dlock_hand_over(k text, mine bytea, at_most interval) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    baton bytea := decode(translate(encode(mine, 'hex'), '0123456789abcdef', 'fedcba9876543210'), 'hex');
BEGIN
    IF length(mine) IS DISTINCT FROM 16 THEN
        RAISE EXCEPTION 'dlock: `mine` must be 16 new random bytes';
    END IF;
    UPDATE {table} SET
        holder = CASE WHEN token = mine THEN 'left=1 ' || holder ELSE holder END, token = baton,
        expires = least(CASE WHEN token = baton THEN expires END, clock_timestamp() + at_most)
    WHERE key = convert_to(k, 'UTF8') AND (token = baton OR token = mine AND left(holder, 7) <> 'left=1 ')
        AND expires > clock_timestamp();
    RETURN CASE WHEN FOUND THEN encode(baton, 'hex') END;
END $$;

-- Takes over what was handed over with a baton of this token, or adopts what an earlier call took: the fence, or null
-- where it was taken over before, or its time is over. `mine` and `who` are those of `dlock_take`.
CREATE OR REPLACE FUNCTION dlock_take_over(k text, baton text, mine bytea, lease interval, who text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    answer bigint;
BEGIN
    IF length(mine) IS DISTINCT FROM 16 OR mine = decode(baton, 'hex') THEN
        RAISE EXCEPTION 'dlock: `mine` must be 16 new random bytes, not those of the baton';
    END IF;
    UPDATE {table} SET
        fence = CASE WHEN token = mine THEN fence
            ELSE greatest(fence + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
                (SELECT mark.fence + 1 FROM {table} AS mark WHERE mark.key = '')) END,
        token = mine, expires = clock_timestamp() + lease,
        holder = who || coalesce(substring(holder FROM ' line=[0-9a-f]{32}$'), '')
    WHERE key = convert_to(k, 'UTF8') AND expires > clock_timestamp()
        AND (token = decode(baton, 'hex') OR token = mine AND left(holder, 7) <> 'left=1 ')
    RETURNING fence INTO answer;
    RETURN answer;
END $$;

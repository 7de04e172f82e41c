"""Takes the lock rows of PostgreSQL by the functions that dlock publishes, and counts in a table that only the lock makes safe.

arguments: url key count

Prints the highest fence at the end.
"""

import secrets
import sys
import time

import psycopg


def main():
    url, key, count = sys.argv[1:]
    last = 0
    with psycopg.connect(url, autocommit=True) as database:

        def one(statement, *values):
            return database.execute(statement, values).fetchone()[0]

        for _ in range(int(count)):
            mine = secrets.token_bytes(16)
            take = "SELECT dlock_take(%s, %s, interval '10 s', 'host=python')"
            while (fence := one(take, key, mine)) is None:
                time.sleep(0.002)
            assert fence > last, f"fence {fence} after {last}"
            last = fence
            assert one(take, key, mine) == fence, "it is taken again under its token"
            before = one("SELECT n FROM counter")
            assert one("SELECT dlock_renew(%s, %s, interval '10 s')", key, mine)
            database.execute("UPDATE counter SET n = %s, fence = %s WHERE fence < %s", (before + 1, fence, fence))
            assert one("SELECT dlock_release(%s, %s)", key, mine)
            assert not one("SELECT dlock_release(%s, %s)", key, mine), "it is released once"
    print(last)


main()

"""Takes the lock rows of PostgreSQL or MariaDB by what dlock publishes for other clients, and counts in a table that only the lock makes safe.

arguments: url key count

Prints the highest fence at the end.
"""

import secrets
import sys
import time
import urllib.parse

LEASE_MS = 10_000


class Postgres:
    """By psycopg, and the functions."""

    def __init__(self, url):
        import psycopg

        self.connection = psycopg.connect(url, autocommit=True)

    def one(self, statement, *values):
        return self.connection.execute(statement, values).fetchone()[0]

    def run(self, statement, *values):
        self.connection.execute(statement, values)

    def take(self, key, mine):
        return self.one("SELECT dlock_take(%s, %s, %s * interval '1 ms', 'host=python')", key, mine, LEASE_MS)

    def renew(self, key, mine):
        return self.one("SELECT dlock_renew(%s, %s, %s * interval '1 ms')", key, mine, LEASE_MS)

    def hand_over(self, key, mine):
        return self.one("SELECT dlock_hand_over(%s, %s, %s * interval '1 ms')", key, mine, LEASE_MS)

    def take_over(self, key, baton, mine):
        statement = "SELECT dlock_take_over(%s, %s, %s, %s * interval '1 ms', 'host=python')"
        return self.one(statement, key, baton, mine, LEASE_MS)

    def release(self, key, mine):
        return self.one("SELECT dlock_release(%s, %s)", key, mine)


class Mysql:
    """By PyMySQL, and the procedures."""

    def __init__(self, url):
        import pymysql

        url = urllib.parse.urlsplit(url)
        account = {"user": url.username, "password": url.password or ""}
        place = {"host": url.hostname, "port": url.port, "database": url.path.strip("/")}
        self.connection = pymysql.connect(autocommit=True, **account, **place)

    def one(self, statement, *values):
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values)
            return cursor.fetchone()[0]

    def run(self, statement, *values):
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values)

    def take(self, key, mine):
        return self.one("CALL dlock_take(%s, %s, %s, 'host=python')", key, mine, LEASE_MS)

    def renew(self, key, mine):
        return self.one("CALL dlock_renew(%s, %s, %s)", key, mine, LEASE_MS)

    def hand_over(self, key, mine):
        return self.one("CALL dlock_hand_over(%s, %s, %s)", key, mine, LEASE_MS)

    def take_over(self, key, baton, mine):
        return self.one("CALL dlock_take_over(%s, %s, %s, %s, 'host=python')", key, baton, mine, LEASE_MS)

    def release(self, key, mine):
        return self.one("CALL dlock_release(%s, %s)", key, mine)


def main():
    url, key, count = sys.argv[1:]
    last = 0
    database = (Postgres if url.startswith("postgres") else Mysql)(url)
    for _ in range(int(count)):
        mine = secrets.token_bytes(16)
        while (fence := database.take(key, mine)) is None:
            time.sleep(0.002)
        assert fence > last, f"fence {fence} after {last}"
        last = fence
        assert database.take(key, mine) == fence, "it is taken again under its token"
        baton, mine = database.hand_over(key, mine), secrets.token_bytes(16)
        fence = database.take_over(key, baton, mine)
        assert fence > last, f"fence {fence} after {last}"
        assert database.take_over(key, baton, secrets.token_bytes(16)) is None, "it is taken over once"
        last = fence
        before = database.one("SELECT n FROM counter")
        assert database.renew(key, mine)
        database.run("UPDATE counter SET n = %s, fence = %s WHERE fence < %s", before + 1, fence, fence)
        assert database.release(key, mine)
        assert not database.release(key, mine), "it is released once"
    print(last)


main()

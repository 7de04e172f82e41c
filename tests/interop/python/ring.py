"""Hands locks on as it is told, by what dlock publishes for other clients: one command a line on standard input, one answer a
line on standard output. tests/interop/rust/src/rings/worker.rs has the commands, and is the worker in Rust.

arguments: url lease-millis journal scripts break

`break` is "-", or which promise the worker breaks on purpose, so that the verdict can be seen to find it:

adopts      it takes over by an acquire under the token of the baton, which can be done twice and draws no fence
believes    it believes in the lock for 50 ms more after it has handed it over
writes      it writes with a fence of its own making after it has handed the lock over
"""

import pathlib
import secrets
import sys
import time

TURNED = str.maketrans("0123456789abcdef", "fedcba9876543210")
WHO = "host=python"


class Redis:
    """By redis-py, and the scripts."""

    name = "redis"

    def __init__(self, url, scripts):
        import redis

        self.client, self.error = redis.Redis.from_url(url, decode_responses=True), redis.ResponseError
        self.scripts = {path.stem: path.read_text(encoding="utf-8") for path in pathlib.Path(scripts).iterdir()}
        self.number = 0

    def call(self, script, keys, *arguments):
        return self.client.eval(self.scripts[script], len(keys), *keys, *arguments)

    def take(self, key, mine, lease):
        self.number += 1
        reply = self.call("lock", [f"dlock:{key}", "dlock:fence:{0}"], self.number, lease, mine, f"0 {WHO}")
        if isinstance(reply, str):
            fence, number = reply.split("+")
            assert int(number) == self.number, "a reply of another call"
            return int(fence)
        what = reply[0][2]
        assert int(reply[1]) == self.number and isinstance(what, list), reply
        return fence_of(what[0]) if len(what) == 1 else None

    def take_over(self, key, baton, mine, lease):
        self.number += 1
        what, number = self.call("take_over", [f"dlock:{key}", "dlock:fence:{0}"], self.number, mine, baton, lease, WHO)
        assert int(number) == self.number, "a reply of another call"
        if isinstance(what, list):
            return fence_of(what[0]) if len(what) == 1 else None
        return what or None

    def hand_over(self, key, mine, millis):
        self.number += 1
        baton = mine.translate(TURNED)
        done, number = self.call("hand_over", [f"dlock:{key}"], mine, baton, "left=1 ", millis, self.number)
        assert int(number) == self.number, "a reply of another call"
        return baton if done else None

    def write(self, key, fence):
        try:
            self.call("write", [f"value:{key}", f"{{value:{key}}}:fence"], "python", fence)
        except self.error as error:
            if not str(error).startswith("STALE"):
                raise
            return False
        return True


def fence_of(value):
    first, number = value.split(" ")[1].split("+")
    return int(first) + int(number)


class Postgres:
    """By psycopg, and the functions."""

    name = "postgres"

    def __init__(self, url, _):
        import psycopg

        self.connection = psycopg.connect(url, autocommit=True)

    def one(self, statement, *values):
        return self.connection.execute(statement, values).fetchone()[0]

    def take(self, key, mine, lease):
        statement = "SELECT dlock_take(%s, %s, %s * interval '1 ms', %s)"
        return self.one(statement, key, bytes.fromhex(mine), lease, WHO)

    def take_over(self, key, baton, mine, lease):
        statement = "SELECT dlock_take_over(%s, %s, %s, %s * interval '1 ms', %s)"
        return self.one(statement, key, baton, bytes.fromhex(mine), lease, WHO)

    def hand_over(self, key, mine, millis):
        statement = "SELECT dlock_hand_over(%s, %s, %s * interval '1 ms')"
        return self.one(statement, key, bytes.fromhex(mine), millis)

    def write(self, key, fence):
        statement = "UPDATE ring SET writer = 'python', fence = %s WHERE key = %s AND fence < %s"
        return self.connection.execute(statement, (fence, key, fence)).rowcount == 1


class Worker:
    def __init__(self, url, lease, journal, scripts, broken):
        self.store = (Redis if url.startswith("redis") else Postgres)(url, scripts)
        self.lease, self.broken = int(lease), broken
        # Not buffered: what was believed is to be known when the process is killed.
        self.journal = open(journal, "ab", buffering=0)

    def note(self, what, key, fence, when):
        self.journal.write(f"{what} {key} {fence} {when}\n".encode())

    def hop(self, key, text, millis):
        mine, sent = secrets.token_hex(16), time.monotonic_ns()
        if text == "-":
            fence = self.store.take(key, mine, self.lease)
        elif self.broken == "adopts":
            mine = text.split(":")[5]
            fence = self.store.take(key, mine, self.lease)
        else:
            fence = self.store.take_over(key, text.split(":")[5], mine, self.lease)
        if fence is None:
            return "refused"
        begun = time.monotonic_ns()
        self.note("begin", key, fence, begun)
        written = "written" if self.store.write(key, fence) else "stale"
        # A lease is counted from when it was asked for.
        ended = min(time.monotonic_ns(), sent + self.lease * 1_000_000)
        if self.broken != "believes":
            self.note("end", key, fence, ended)
        until = int(time.time() * 1000) + millis
        baton = self.store.hand_over(key, mine, millis)
        if self.broken == "believes":
            ended = time.monotonic_ns() + 50_000_000
            self.note("end", key, fence, ended)
        if baton is None:
            return "failed it was lost before the hand-over"
        return f"passed {fence} {begun} {ended} {written} dlock-baton:1:{self.store.name}:{until}:{fence}:{baton}:{key}"

    def answer(self, words):
        match words:
            case ["hop", key, text, millis]:
                return self.hop(key, text, int(millis))
            case ["write", key, fence]:
                fence = int(fence) + (10**9 if self.broken == "writes" else 0)
                return "written" if self.store.write(key, fence) else "stale"
        raise ValueError(f"no command: {words}")


def main():
    worker = Worker(*sys.argv[1:])
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            answer = worker.answer(line.split())
        except Exception as error:  # The other side is to know.
            answer = f"failed {error!r}".replace("\n", " ")
        print(answer, flush=True)


main()

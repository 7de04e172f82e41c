"""Locks with kazoo as it is told: one command a line on standard input, one answer a line on standard output.

arguments: url lease-millis process-number clock-offset-nanos history-file

clock                                                        now
acquire KIND NAME                                            invoked returned fence
release KIND NAME                                            invoked returned
sections KIND NAME COUNTER COUNT HOLD-MICROS PAUSE-MICROS    count

Times are CLOCK_MONOTONIC plus the offset, which makes them those of the other processes. A fence is the transaction that made
the node of the lock. An answer that begins with "error" tells what went wrong.
"""

import json
import sys
import time

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.recipe.lock import Lock

LOCKS = "/dlock/"
COUNTERS = "/counters/"


class SharedLock(Lock):
    """Its nodes have the name that Curator and go-zookeeper look for, and it waits for theirs."""

    _NODE_NAME = "-lock-"
    _EXCLUDE_NAMES = ["-lock-"]


class Worker:
    def __init__(self, url, lease, process, offset, history):
        self.process, self.offset, self.hold, self.locks = process, offset, 0, {}
        self.history = open(history, "a", encoding="utf-8")
        self.client = KazooClient(hosts=url.removeprefix("zk://"), timeout=lease / 1000)
        self.client.start()

    def now(self):
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC) + self.offset

    def record(self, name, operation, invoked, returned, fence=None):
        event = {"process": self.process, "hold": self.hold, "key": name, "op": operation, "invoked": invoked}
        event |= {"returned": returned, "outcome": "ok", "fence": fence, "valid_until": None}
        self.history.write(json.dumps(event) + "\n")

    def acquire(self, name):
        invoked = self.now()
        lock = SharedLock(self.client, LOCKS + name, "kazoo")
        lock.acquire()
        fence = self.client.exists(f"{LOCKS}{name}/{lock.node}").czxid
        returned = self.now()
        self.locks[name] = lock
        self.hold += 1
        self.record(name, "acquire", invoked, returned, fence)
        return f"{invoked} {returned} {fence}"

    def release(self, name):
        invoked = self.now()
        self.locks.pop(name).release()
        returned = self.now()
        # Up to here it believed that it had the lock.
        self.record(name, "check", invoked, invoked)
        self.record(name, "release", invoked, returned)
        return f"{invoked} {returned}"

    def sections(self, name, counter, count, hold, pause):
        """Adds one to a counter again and again, by reading and writing it, which only the lock makes safe."""
        for _ in range(count):
            self.acquire(name)
            try:
                before = int(self.client.get(COUNTERS + counter)[0])
            except NoNodeError:
                self.client.create(COUNTERS + counter, b"0", makepath=True)
                before = 0
            time.sleep(hold / 1e6)
            self.client.set(COUNTERS + counter, str(before + 1).encode())
            self.release(name)
            time.sleep(pause / 1e6)
        return str(count)

    def answer(self, words):
        match words:
            case ["clock"]:
                return str(self.now())
            case ["acquire", _, name]:
                return self.acquire(name)
            case ["release", _, name]:
                return self.release(name)
            case ["sections", _, name, counter, *numbers]:
                return self.sections(name, counter, *map(int, numbers))
        raise ValueError(f"no command: {words}")


def main():
    url, lease, process, offset, history = sys.argv[1:]
    worker = Worker(url, int(lease), int(process), int(offset), history)
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            answer = worker.answer(line.split())
        except Exception as error:  # The other side is to know.
            answer = f"error {error!r}".replace("\n", " ")
        worker.history.flush()
        print(answer, flush=True)
    worker.client.stop()


main()

"""Uses kazoo's lock as it is told: orders on standard input, answers on standard output, one a line.
tests/compare/src/contender.rs has the orders.

arguments: kazoo url session-millis
"""

import sys
import threading

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import CancelledError, LockTimeout
from kazoo.recipe.lock import Lock

LOCKS = "/locks/"
printing = threading.Lock()


def tell(order, words):
    with printing:
        print(order, words.replace("\n", " "), flush=True)


class Contender:
    def __init__(self, url, session):
        self.client = KazooClient(hosts=url.removeprefix("zk://"), timeout=session)
        self.client.start()
        self.locks = {}

    def acquire(self, order, key, wait, fenced):
        lock = self.locks[order] = Lock(self.client, LOCKS + key, "contender")
        try:
            acquired = lock.acquire(timeout=int(wait) / 1000 or None)
        except LockTimeout:
            return tell(order, "timeout")
        except CancelledError:
            return tell(order, "cancelled")
        if not acquired:
            return tell(order, "cancelled")
        fence = self.client.exists(f"{LOCKS}{key}/{lock.node}").czxid if fenced == "1" else "-"
        tell(order, f"acquired {fence}")

    def release(self, order, of):
        self.locks[of].release()
        tell(order, "released")

    def check(self, order, of):
        held = self.client.state == KazooState.CONNECTED and self.locks[of].is_acquired
        tell(order, "held" if held else "gone")

    def watch(self, order, _):
        def listen(state):
            if state == KazooState.SUSPENDED:
                tell(order, "warned")
            elif state == KazooState.LOST:
                tell(order, "lost")

        self.client.add_listener(listen)
        tell(order, "watching")

    def turns(self, order, key, count):
        failures = []

        def turn():
            try:
                with Lock(self.client, LOCKS + key, "contender"):
                    pass
            except Exception as error:  # It is counted.
                failures.append(error)

        threads = [threading.Thread(target=turn, daemon=True) for _ in range(int(count))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        tell(order, f"turned {len(failures)}")

    def carry_out(self, order, verb, *arguments):
        try:
            getattr(self, verb)(order, *arguments)
        except Exception as error:  # The other side is to know.
            tell(order, f"error {error!r}")


def main():
    _, url, session = sys.argv[1:]
    contender = Contender(url, int(session) / 1000)
    tell("0", "ready")
    for line in sys.stdin:
        order, verb, *arguments = line.split()
        if verb == "cancel":
            contender.locks[arguments[0]].cancel()
        else:
            work = threading.Thread(target=contender.carry_out, args=(order, verb, *arguments), daemon=True)
            work.start()


main()

package dlock.interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Uses Redisson or Curator as it is told: orders on standard input, answers on standard output, one a line.
 * tests/compare/src/contender.rs has the orders. The arguments are redisson or curator, the url, and the lease in milliseconds.
 */
public final class Contender {
    /** What is compared. */
    interface Library {
        /** A lock that one thread uses once. */
        Contended lock(String key, boolean fenced) throws Exception;
    }

    /** What a user calls. */
    interface Contended {
        /** Waits for ever with 0; whether the lock was acquired. */
        boolean acquire(long waitMillis) throws Exception;

        /** A number that grows with each holder, null where there is none. */
        Long fence() throws Exception;

        void release() throws Exception;

        /** What the library answers whom it asks. */
        boolean held() throws Exception;

        /** Has the library tell what it tells; false where there is nothing to listen to. */
        boolean listen(java.util.function.Consumer<String> tell);
    }

    /** A thread that acquires, and then owns what it has acquired. */
    private static final class Owner extends Thread {
        private final BlockingQueue<Work> works = new LinkedBlockingQueue<>();
        private final Work first;
        private volatile Contended lock;
        private boolean acquiring = true;

        Owner(Work first) {
            this.first = first;
            setDaemon(true);
        }

        /** Interrupts the acquire, if that has not ended. */
        synchronized void cancel() {
            if (acquiring) {
                interrupt();
            }
        }

        /** From here on it cannot be cancelled. */
        synchronized void acquired(Contended taken) {
            acquiring = false;
            lock = taken;
            Thread.interrupted();
        }

        @Override
        public void run() {
            try {
                first.run();
                while (true) {
                    works.take().run();
                }
            } catch (Exception e) {
                // It has said so, or the process ends.
            }
        }
    }

    private interface Work {
        void run() throws Exception;
    }

    private final Library library;
    private final Map<String, Owner> owners = new ConcurrentHashMap<>();

    private Contender(Library library) {
        this.library = library;
    }

    public static void main(String[] arguments) throws Exception {
        String url = arguments[1];
        int lease = Integer.parseInt(arguments[2]);
        Library library =
            arguments[0].equals("redisson") ? new RedissonContender(url, lease) : new CuratorContender(url, lease);
        new Contender(library).serve();
        System.exit(0);
    }

    private void serve() throws IOException {
        tell("0", "ready");
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            String[] words = line.split(" ");
            String id = words[0];
            switch (words[1]) {
                case "acquire" -> begin(id, words[2], Long.parseLong(words[3]), words[4].equals("1"));
                case "cancel" -> owners.get(words[2]).cancel();
                case "turns" -> new Thread(() -> turns(id, words[2], Integer.parseInt(words[3]))).start();
                default -> {
                    Owner owner = owners.get(words[2]);
                    owner.works.add(() -> attempt(id, () -> carryOut(id, words[1], owner.lock)));
                }
            }
        }
    }

    private void begin(String id, String key, long wait, boolean fenced) {
        // The thread knows itself only when it runs.
        Owner owner = new Owner(() -> {
            try {
                Contended lock = library.lock(key, fenced);
                if (!lock.acquire(wait)) {
                    tell(id, "timeout");
                    return;
                }
                ((Owner) Thread.currentThread()).acquired(lock);
                Long fence = fenced ? lock.fence() : null;
                tell(id, "acquired " + (fence == null ? "-" : fence));
            } catch (InterruptedException e) {
                tell(id, "cancelled");
            } catch (Exception e) {
                tell(id, "error " + e);
            }
        });
        owners.put(id, owner);
        owner.start();
    }

    private void carryOut(String id, String verb, Contended lock) throws Exception {
        switch (verb) {
            case "release" -> {
                lock.release();
                tell(id, "released");
            }
            case "check" -> tell(id, lock.held() ? "held" : "gone");
            case "watch" -> tell(id, lock.listen(what -> tell(id, what)) ? "watching" : "deaf");
            default -> throw new IllegalArgumentException("no order: " + verb);
        }
    }

    private void turns(String id, String key, int count) {
        AtomicInteger failures = new AtomicInteger();
        CountDownLatch turns = new CountDownLatch(count);
        for (int i = 0; i < count; i++) {
            new Thread(() -> {
                try {
                    Contended lock = library.lock(key, false);
                    lock.acquire(0);
                    lock.release();
                } catch (Exception e) {
                    failures.incrementAndGet();
                }
                turns.countDown();
            }).start();
        }
        try {
            turns.await();
            tell(id, "turned " + failures);
        } catch (InterruptedException e) {
            // The process ends.
        }
    }

    private static void attempt(String id, Work work) {
        try {
            work.run();
        } catch (Exception e) {
            tell(id, "error " + e);
        }
    }

    private static void tell(String id, String words) {
        String line = id + " " + words.replace('\n', ' ');
        synchronized (System.out) {
            System.out.println(line);
        }
    }
}

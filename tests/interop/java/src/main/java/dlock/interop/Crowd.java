package dlock.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.locks.LockSupport;

/** Threads that all want one lock. */
final class Crowd {
    private Crowd() {
    }

    /** How often it was taken. With {@code mixed}, one in twenty writes and the others read. */
    static String run(Service service, String kind, String name, int concurrency, long millis, long holdMicros)
        throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(concurrency);
        try {
            long until = System.nanoTime() + millis * 1_000_000;
            List<Future<Long>> parts = new ArrayList<>();
            for (int i = 0; i < concurrency; i++) {
                int first = i;
                Lock[] locks = kind.equals("mixed")
                    ? new Lock[] {service.lock("write", name), service.lock("read", name)}
                    : new Lock[] {service.lock(kind, name)};
                parts.add(threads.submit(() -> sections(locks, first, until, holdMicros)));
            }
            long all = 0;
            for (Future<Long> part : parts) {
                all += part.get();
            }
            return Long.toString(all);
        } finally {
            threads.shutdown();
        }
    }

    private static long sections(Lock[] locks, int first, long until, long holdMicros) throws Exception {
        long count = 0;
        for (long round = first; System.nanoTime() < until; round++) {
            Lock lock = locks[locks.length == 1 || round % 20 == 0 ? 0 : 1];
            lock.acquire();
            if (holdMicros > 0) {
                LockSupport.parkNanos(holdMicros * 1_000);
            }
            lock.release();
            count++;
        }
        return count;
    }
}

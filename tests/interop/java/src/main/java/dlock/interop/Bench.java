package dlock.interop;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Uncontended pairs of lock and unlock, each thread on a key of its own. */
final class Bench {
    private Bench() {
    }

    static String run(Service service, String kind, String prefix, int concurrency, long millis) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(concurrency);
        try {
            long until = System.nanoTime() + millis * 1_000_000;
            List<Future<long[]>> parts = new ArrayList<>();
            for (int i = 0; i < concurrency; i++) {
                Lock lock = service.lock(kind, prefix + i);
                parts.add(threads.submit(() -> pairs(lock, until)));
            }
            long[] all = new long[0];
            for (Future<long[]> part : parts) {
                long[] some = part.get();
                int old = all.length;
                all = Arrays.copyOf(all, old + some.length);
                System.arraycopy(some, 0, all, old, some.length);
            }
            Arrays.sort(all);
            return all.length + " " + all[all.length / 2] + " " + all[all.length * 99 / 100];
        } finally {
            threads.shutdown();
        }
    }

    private static long[] pairs(Lock lock, long until) throws Exception {
        long[] took = new long[1024];
        int count = 0;
        for (long begin = System.nanoTime(); begin < until;) {
            lock.acquire();
            lock.release();
            long end = System.nanoTime();
            if (count == took.length) {
                took = Arrays.copyOf(took, 2 * count);
            }
            took[count++] = end - begin;
            begin = end;
        }
        return Arrays.copyOf(took, count);
    }
}

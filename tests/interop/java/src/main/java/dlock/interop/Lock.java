package dlock.interop;

import java.util.concurrent.TimeUnit;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/** One of Redisson's locks, or none, as the commands name them. */
interface Lock {
    /** Waits for the lock. Returns its fencing token, null where it has none. */
    Long acquire();

    /** Waits up to {@code millis}; whether the lock was taken. */
    boolean acquireWithin(long millis) throws InterruptedException;

    void release();

    static Lock of(RedissonClient client, String kind, String name) {
        return switch (kind) {
            case "rlock" -> new Plain(client.getLock(name));
            case "fenced" -> new Fenced(client.getFencedLock(name));
            case "none" -> new None();
            default -> throw new IllegalArgumentException("no kind of lock: " + kind);
        };
    }

    record Plain(RLock lock) implements Lock {
        @Override
        public Long acquire() {
            lock.lock();
            return null;
        }

        @Override
        public boolean acquireWithin(long millis) throws InterruptedException {
            return lock.tryLock(millis, TimeUnit.MILLISECONDS);
        }

        @Override
        public void release() {
            lock.unlock();
        }
    }

    record Fenced(RFencedLock lock) implements Lock {
        @Override
        public Long acquire() {
            return lock.lockAndGetToken();
        }

        @Override
        public boolean acquireWithin(long millis) throws InterruptedException {
            return lock.tryLock(millis, TimeUnit.MILLISECONDS);
        }

        @Override
        public void release() {
            lock.unlock();
        }
    }

    /** Excludes nobody: shows that the counter loses updates without a lock. */
    record None() implements Lock {
        @Override
        public Long acquire() {
            return null;
        }

        @Override
        public boolean acquireWithin(long millis) {
            return true;
        }

        @Override
        public void release() {
        }
    }
}

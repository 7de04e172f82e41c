package dlock.interop;

import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Redisson with its watchdog, which renews for as long as the lock is held; all else as it is by default. */
final class RedissonContender implements Contender.Library {
    private final RedissonClient client;

    RedissonContender(String url, int leaseMillis) {
        Config config = new Config();
        config.setLockWatchdogTimeout(leaseMillis);
        config.useSingleServer().setAddress(url);
        client = Redisson.create(config);
    }

    @Override
    public Contender.Contended lock(String key, boolean fenced) {
        return new Taken(fenced ? client.getFencedLock(key) : client.getLock(key));
    }

    private record Taken(RLock lock) implements Contender.Contended {
        @Override
        public boolean acquire(long waitMillis) throws InterruptedException {
            if (waitMillis > 0) {
                return lock.tryLock(waitMillis, TimeUnit.MILLISECONDS);
            }
            lock.lockInterruptibly();
            return true;
        }

        @Override
        public Long fence() {
            return lock instanceof RFencedLock fenced ? fenced.getToken() : null;
        }

        @Override
        public void release() {
            lock.unlock();
        }

        @Override
        public boolean held() {
            return lock.isHeldByCurrentThread();
        }

        @Override
        public boolean listen(Consumer<String> tell) {
            return false;
        }
    }
}

package dlock.interop;

import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RBucket;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

final class RedissonService implements Service {
    private static final String CLUSTER = "redis+cluster://";
    private static final String PERMITS = "permits-";

    private final RedissonClient client;
    private final int lease;

    RedissonService(String url, int leaseMillis) {
        Config config = new Config();
        config.setLockWatchdogTimeout(leaseMillis);
        if (url.startsWith(CLUSTER)) {
            String[] nodes = url.substring(CLUSTER.length()).split(",");
            config.useClusterServers().addNodeAddress(Arrays.stream(nodes).map(node -> "redis://" + node).toArray(String[]::new));
        } else {
            config.useSingleServer().setAddress(url);
        }
        client = Redisson.create(config);
        lease = leaseMillis;
    }

    @Override
    public Lock lock(String kind, String name) {
        if (kind.startsWith(PERMITS)) {
            return permit(name, kind.substring(PERMITS.length()));
        }
        return switch (kind) {
            case "rlock" -> new Plain(client.getLock(name));
            case "fenced" -> new Fenced(client.getFencedLock(name));
            case "read" -> new Plain(client.getReadWriteLock(name).readLock());
            case "write" -> new Plain(client.getReadWriteLock(name).writeLock());
            case "fair" -> new Plain(client.getFairLock(name));
            default -> throw new IllegalArgumentException("Redisson has no such kind of lock: " + kind);
        };
    }

    private Lock permit(String name, String permits) {
        RPermitExpirableSemaphore semaphore = client.getPermitExpirableSemaphore(name);
        semaphore.trySetPermits(Integer.parseInt(permits));
        return new Permit(semaphore, lease);
    }

    @Override
    public String query(String name) {
        RLock lock = client.getLock(name);
        return lock.isLocked() + " " + lock.remainTimeToLive() + " " + lock.getHoldCount() + " "
            + lock.isHeldByCurrentThread();
    }

    @Override
    public boolean force(String name) {
        return client.getLock(name).forceUnlock();
    }

    @Override
    public List<String> participants(String name) {
        throw new UnsupportedOperationException("nobody knows who waits for a lock of Redisson");
    }

    @Override
    public String leader(String name) {
        throw new IllegalArgumentException("Redisson has no leaders");
    }

    @Override
    public long read(String counter) {
        String value = bucket(counter).get();
        return value == null ? 0 : Long.parseLong(value);
    }

    @Override
    public void write(String counter, long value) {
        bucket(counter).set(Long.toString(value));
    }

    private RBucket<String> bucket(String name) {
        return client.getBucket(name, StringCodec.INSTANCE);
    }

    @Override
    public void close() {
        client.shutdown();
    }

    private record Plain(RLock lock) implements Lock {
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

    private record Fenced(RFencedLock lock) implements Lock {
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

    /** One of so many, with a lease that nobody renews. */
    private static final class Permit implements Lock {
        private final RPermitExpirableSemaphore semaphore;
        private final int lease;
        private String id;

        Permit(RPermitExpirableSemaphore semaphore, int lease) {
            this.semaphore = semaphore;
            this.lease = lease;
        }

        @Override
        public Long acquire() throws InterruptedException {
            id = semaphore.acquire(lease, TimeUnit.MILLISECONDS);
            return null;
        }

        @Override
        public boolean acquireWithin(long millis) throws InterruptedException {
            id = semaphore.tryAcquire(millis, lease, TimeUnit.MILLISECONDS);
            return id != null;
        }

        @Override
        public void release() {
            semaphore.release(id);
        }
    }
}

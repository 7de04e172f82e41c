package dlock.interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.KeeperException;

final class CuratorService implements Service {
    /** Where dlock has its locks, unless told otherwise. */
    private static final String LOCKS = "/dlock/";
    private static final String PERMITS = "permits-";
    private static final String COUNTERS = "/counters/";

    private final CuratorFramework client;
    /** A mutex knows only what was locked through itself. */
    private final Map<String, Mutex> mutexes = new ConcurrentHashMap<>();
    private final Map<String, Latched> latches = new ConcurrentHashMap<>();
    private final Map<String, InterProcessReadWriteLock> readers = new ConcurrentHashMap<>();

    CuratorService(String url, int sessionMillis) throws InterruptedException {
        String servers = url.substring("zk://".length());
        client = CuratorFrameworkFactory.newClient(servers, sessionMillis, sessionMillis, new ExponentialBackoffRetry(50, 10));
        client.start();
        client.blockUntilConnected();
    }

    @Override
    public Lock lock(String kind, String name) {
        if (kind.startsWith(PERMITS)) {
            int permits = Integer.parseInt(kind.substring(PERMITS.length()));
            return new Permit(new InterProcessSemaphoreV2(client, LOCKS + name, permits));
        }
        Mutex mutex = mutexes.computeIfAbsent(name, some -> new Mutex(client, LOCKS + some));
        return switch (kind) {
            case "mutex" -> new Taken(mutex, null);
            case "fenced" -> new Taken(mutex, client);
            case "read" -> new Shared(readers(name).readLock());
            case "write" -> new Shared(readers(name).writeLock());
            case "latch" -> latches.computeIfAbsent(name, some -> new Latched(client, LOCKS + some));
            default -> throw new IllegalArgumentException("Curator has no such kind of lock: " + kind);
        };
    }

    private InterProcessReadWriteLock readers(String name) {
        return readers.computeIfAbsent(name, some -> new InterProcessReadWriteLock(client, LOCKS + some));
    }

    @Override
    public String query(String name) throws Exception {
        boolean mine = mutexes.containsKey(name) && mutexes.get(name).isOwnedByCurrentThread();
        return !participants(name).isEmpty() + " -1 " + (mine ? 1 : 0) + " " + mine;
    }

    @Override
    public boolean force(String name) throws Exception {
        List<String> participants = participants(name);
        if (participants.isEmpty()) {
            return false;
        }
        client.delete().forPath(LOCKS + name + "/" + participants.get(0));
        return true;
    }

    @Override
    public List<String> participants(String name) throws Exception {
        List<String> names = new ArrayList<>();
        try {
            for (String path : new Mutex(client, LOCKS + name).getParticipantNodes()) {
                names.add(path.substring(path.lastIndexOf('/') + 1));
            }
        } catch (KeeperException.NoNodeException e) {
            // Nobody has used the lock yet.
        }
        return names;
    }

    @Override
    public String leader(String name) throws Exception {
        // One that is not started asks, and stands for nothing.
        return new LeaderLatch(client, LOCKS + name, "onlooker").getLeader().getId();
    }

    @Override
    public long read(String counter) throws Exception {
        try {
            return Long.parseLong(new String(client.getData().forPath(COUNTERS + counter), StandardCharsets.UTF_8));
        } catch (KeeperException.NoNodeException e) {
            return 0;
        }
    }

    @Override
    public void write(String counter, long value) throws Exception {
        byte[] data = Long.toString(value).getBytes(StandardCharsets.UTF_8);
        client.create().orSetData().creatingParentsIfNeeded().forPath(COUNTERS + counter, data);
    }

    @Override
    public void close() {
        client.close();
    }

    /** Tells which node is its own. */
    private static final class Mutex extends InterProcessMutex {
        Mutex(CuratorFramework client, String path) {
            super(client, path);
        }

        String node() {
            return getLockPath();
        }
    }

    /** A term of office of a leader. A latch is used once. */
    private static final class Latched implements Lock {
        private final CuratorFramework client;
        private final String path;
        private LeaderLatch latch;

        Latched(CuratorFramework client, String path) {
            this.client = client;
            this.path = path;
        }

        @Override
        public Long acquire() throws Exception {
            latch = new LeaderLatch(client, path, "java-" + ProcessHandle.current().pid());
            latch.start();
            latch.await();
            return null;
        }

        @Override
        public boolean acquireWithin(long millis) throws Exception {
            latch = new LeaderLatch(client, path, "java-" + ProcessHandle.current().pid());
            latch.start();
            if (latch.await(millis, TimeUnit.MILLISECONDS)) {
                return true;
            }
            latch.close();
            return false;
        }

        @Override
        public void release() throws Exception {
            boolean led = latch.hasLeadership();
            latch.close();
            if (!led) {
                throw new IllegalStateException("it led no more");
            }
        }
    }

    /** A lock that others may hold too. */
    private record Shared(InterProcessMutex lock) implements Lock {
        @Override
        public Long acquire() throws Exception {
            lock.acquire();
            return null;
        }

        @Override
        public boolean acquireWithin(long millis) throws Exception {
            return lock.acquire(millis, TimeUnit.MILLISECONDS);
        }

        @Override
        public void release() throws Exception {
            lock.release();
        }
    }

    /** One of so many. */
    private static final class Permit implements Lock {
        private final InterProcessSemaphoreV2 semaphore;
        private Lease lease;

        Permit(InterProcessSemaphoreV2 semaphore) {
            this.semaphore = semaphore;
        }

        @Override
        public Long acquire() throws Exception {
            lease = semaphore.acquire();
            return null;
        }

        @Override
        public boolean acquireWithin(long millis) throws Exception {
            lease = semaphore.acquire(millis, TimeUnit.MILLISECONDS);
            return lease != null;
        }

        @Override
        public void release() {
            semaphore.returnLease(lease);
        }
    }

    /** With a client, the transaction that made the lock's node is its fencing token. */
    private record Taken(Mutex mutex, CuratorFramework client) implements Lock {
        @Override
        public Long acquire() throws Exception {
            mutex.acquire();
            return client == null ? null : client.checkExists().forPath(mutex.node()).getCzxid();
        }

        @Override
        public boolean acquireWithin(long millis) throws Exception {
            return mutex.acquire(millis, TimeUnit.MILLISECONDS);
        }

        @Override
        public void release() throws Exception {
            mutex.release();
        }
    }
}

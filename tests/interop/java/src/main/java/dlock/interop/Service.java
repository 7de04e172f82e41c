package dlock.interop;

import java.util.List;

/** A lock service of Java, and a store beside it. */
interface Service extends AutoCloseable {
    /** One client of the server at {@code url}. {@code lease} is how long a lock outlives its process. */
    static Service open(String url, int leaseMillis) throws Exception {
        return url.startsWith("zk:") ? new CuratorService(url, leaseMillis) : new RedissonService(url, leaseMillis);
    }

    /** A lock to be used by the calling thread: {@code rlock} of Redisson, {@code mutex} and {@code latch} of Curator, {@code fenced} of both. */
    Lock lock(String kind, String name) throws Exception;

    /** What is known of a lock: locked ttl-millis hold-count held-by-this-thread. */
    String query(String name) throws Exception;

    /** Whether there was something to unlock. */
    boolean force(String name) throws Exception;

    /** Who holds the lock and who waits for it, in order. */
    List<String> participants(String name) throws Exception;

    /** Who leads, as Curator names it. */
    String leader(String name) throws Exception;

    /** The value of a counter, 0 at first. */
    long read(String counter) throws Exception;

    void write(String counter, long value) throws Exception;

    @Override
    void close();
}

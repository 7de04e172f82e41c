package dlock.interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.concurrent.locks.LockSupport;
import org.redisson.Redisson;
import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/**
 * Locks with Redisson as it is told: one command a line on standard input, one answer a line on standard output, until the
 * input ends or the process is killed. All commands run on one thread, which is the owner of what it locks.
 *
 * <pre>
 * arguments: redis-url lease-millis process-number clock-offset-nanos history-file
 *
 * clock                                                    now
 * acquire KIND NAME                                        invoked returned token
 * try KIND NAME WAIT-MILLIS                                true|false
 * release KIND NAME                                        invoked returned
 * query NAME                                               locked ttl-millis hold-count held-by-this-thread
 * force NAME                                               true|false
 * sections KIND NAME COUNTER COUNT HOLD-MICROS PAUSE-MICROS    count
 * bench PREFIX CONCURRENCY MILLIS                          pairs p50-nanos p99-nanos
 * </pre>
 *
 * Times are {@link System#nanoTime} plus the offset, which makes them those of the other processes.
 * KIND is {@code rlock}, {@code fenced} or {@code none}. An answer that begins with {@code error} tells what went wrong.
 */
public final class Worker {
    private final RedissonClient client;
    private final long clockOffset;
    private final History history;
    private long hold;

    private Worker(RedissonClient client, long clockOffset, History history) {
        this.client = client;
        this.clockOffset = clockOffset;
        this.history = history;
    }

    public static void main(String[] args) throws IOException {
        Config config = new Config();
        config.setLockWatchdogTimeout(Long.parseLong(args[1]));
        config.useSingleServer().setAddress(args[0]);
        RedissonClient client = Redisson.create(config);
        try (History history = new History(Long.parseLong(args[2]), Path.of(args[4]))) {
            new Worker(client, Long.parseLong(args[3]), history).serve();
        }
        client.shutdown();
    }

    private long now() {
        return System.nanoTime() + clockOffset;
    }

    private void serve() throws IOException {
        System.out.println("ready");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String answer;
            try {
                answer = answer(line.split(" "));
            } catch (Exception e) {
                answer = "error " + e.toString().replace('\n', ' ');
            }
            history.flush();
            System.out.println(answer);
        }
    }

    private String answer(String[] words) throws Exception {
        return switch (words[0]) {
            case "clock" -> Long.toString(now());
            case "acquire" -> acquire(Lock.of(client, words[1], words[2]), words[2]);
            case "try" -> Boolean.toString(
                Lock.of(client, words[1], words[2]).acquireWithin(Long.parseLong(words[3])));
            case "release" -> release(Lock.of(client, words[1], words[2]), words[2]);
            case "query" -> query(client.getLock(words[1]));
            case "force" -> Boolean.toString(client.getLock(words[1]).forceUnlock());
            case "sections" -> sections(words);
            case "bench" -> Bench.run(client, words[1], Integer.parseInt(words[2]), Long.parseLong(words[3]));
            default -> throw new IllegalArgumentException("no command: " + words[0]);
        };
    }

    private String acquire(Lock lock, String name) {
        long invoked = now();
        Long token = lock.acquire();
        long returned = now();
        hold++;
        history.record(hold, name, "acquire", invoked, returned, token);
        return invoked + " " + returned + " " + token;
    }

    private String release(Lock lock, String name) {
        long invoked = now();
        lock.release();
        long returned = now();
        // Up to here it believed that it had the lock.
        history.record(hold, name, "check", invoked, invoked, null);
        history.record(hold, name, "release", invoked, returned, null);
        return invoked + " " + returned;
    }

    private static String query(RLock lock) {
        return lock.isLocked() + " " + lock.remainTimeToLive() + " " + lock.getHoldCount() + " "
            + lock.isHeldByCurrentThread();
    }

    /** Adds one to a counter again and again, by reading and writing it, which only the lock makes safe. */
    private String sections(String[] words) {
        String name = words[2];
        Lock lock = Lock.of(client, words[1], name);
        RBucket<String> counter = client.getBucket(words[3], StringCodec.INSTANCE);
        int count = Integer.parseInt(words[4]);
        long hold = Long.parseLong(words[5]);
        long pause = Long.parseLong(words[6]);
        for (int i = 0; i < count; i++) {
            acquire(lock, name);
            String before = counter.get();
            sleep(hold);
            counter.set(Long.toString(before == null ? 1 : Long.parseLong(before) + 1));
            release(lock, name);
            sleep(pause);
        }
        return Integer.toString(count);
    }

    private static void sleep(long micros) {
        long until = System.nanoTime() + micros * 1_000;
        for (long left = micros * 1_000; left > 0; left = until - System.nanoTime()) {
            LockSupport.parkNanos(left);
        }
    }
}

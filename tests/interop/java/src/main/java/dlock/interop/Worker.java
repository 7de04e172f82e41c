package dlock.interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.concurrent.locks.LockSupport;

/**
 * Locks with Redisson or Curator as it is told: one command a line on standard input, one answer a line on standard
 * output, until the input ends or the process is killed. All commands run on one thread, which is the owner of what it locks.
 *
 * <pre>
 * arguments: url lease-millis process-number clock-offset-nanos history-file
 *
 * clock                                                    now
 * acquire KIND NAME                                        invoked returned token
 * try KIND NAME WAIT-MILLIS                                true|false
 * release KIND NAME                                        invoked returned
 * query NAME                                               locked ttl-millis hold-count held-by-this-thread
 * force NAME                                               true|false
 * participants NAME                                        who holds it and who waits, in order, with commas
 * leader NAME                                              who leads
 * sections KIND NAME COUNTER COUNT HOLD-MICROS PAUSE-MICROS    count
 * bench KIND PREFIX CONCURRENCY MILLIS                     pairs p50-nanos p99-nanos
 * crowd KIND NAME CONCURRENCY MILLIS HOLD-MICROS           sections
 * </pre>
 *
 * Times are {@link System#nanoTime} plus the offset, which makes them those of the other processes.
 * KIND is {@code none}, or one that {@link Service#lock} knows. An answer that begins with {@code error} tells what went wrong.
 */
public final class Worker {
    private final Service service;
    private final long clockOffset;
    private final History history;
    private long hold;

    private Worker(Service service, long clockOffset, History history) {
        this.service = service;
        this.clockOffset = clockOffset;
        this.history = history;
    }

    public static void main(String[] args) throws Exception {
        try (Service service = Service.open(args[0], Integer.parseInt(args[1]));
            History history = new History(Long.parseLong(args[2]), Path.of(args[4]))) {
            new Worker(service, Long.parseLong(args[3]), history).serve();
        }
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
            case "acquire" -> acquire(lock(words[1], words[2]), words[2]);
            case "try" -> Boolean.toString(lock(words[1], words[2]).acquireWithin(Long.parseLong(words[3])));
            case "release" -> release(lock(words[1], words[2]), words[2]);
            case "query" -> service.query(words[1]);
            case "force" -> Boolean.toString(service.force(words[1]));
            case "participants" -> String.join(",", service.participants(words[1]));
            case "leader" -> service.leader(words[1]);
            case "sections" -> sections(words);
            case "holds" -> holds(words);
            case "bench" -> Bench.run(
                service, words[1], words[2], Integer.parseInt(words[3]), Long.parseLong(words[4]));
            case "crowd" -> Crowd.run(
                service, words[1], words[2], Integer.parseInt(words[3]), Long.parseLong(words[4]), Long.parseLong(words[5]));
            default -> throw new IllegalArgumentException("no command: " + words[0]);
        };
    }

    private Lock lock(String kind, String name) throws Exception {
        return kind.equals("none") ? Lock.NONE : service.lock(kind, name);
    }

    private String acquire(Lock lock, String name) throws Exception {
        long invoked = now();
        Long token = lock.acquire();
        long returned = now();
        hold++;
        history.record(hold, name, "acquire", invoked, returned, token);
        return invoked + " " + returned + " " + token;
    }

    private String release(Lock lock, String name) throws Exception {
        long invoked = now();
        lock.release();
        long returned = now();
        // Up to here it believed that it had the lock.
        history.record(hold, name, "check", invoked, invoked, null);
        history.record(hold, name, "release", invoked, returned, null);
        return invoked + " " + returned;
    }

    /** Adds one to a counter again and again, by reading and writing it, which only the lock makes safe. */
    private String sections(String[] words) throws Exception {
        String name = words[2];
        Lock lock = lock(words[1], name);
        int count = Integer.parseInt(words[4]);
        long hold = Long.parseLong(words[5]);
        long pause = Long.parseLong(words[6]);
        for (int i = 0; i < count; i++) {
            acquire(lock, name);
            long before = service.read(words[3]);
            sleep(hold);
            service.write(words[3], before + 1);
            release(lock, name);
            sleep(pause);
        }
        return Integer.toString(count);
    }

    /** Takes the lock again and again for so many milliseconds; how often. */
    private String holds(String[] words) throws Exception {
        String name = words[2];
        Lock lock = lock(words[1], name);
        long end = System.nanoTime() + Long.parseLong(words[5]) * 1_000_000;
        int count = 0;
        for (; System.nanoTime() < end; count++) {
            acquire(lock, name);
            sleep(Long.parseLong(words[3]));
            release(lock, name);
            sleep(Long.parseLong(words[4]));
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

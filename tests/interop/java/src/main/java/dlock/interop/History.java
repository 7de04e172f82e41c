package dlock.interop;

import java.io.BufferedWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/** What this process did, one JSON object a line, in the format of the Rust side. */
final class History implements AutoCloseable {
    private final long process = ProcessHandle.current().pid();
    private final BufferedWriter file;

    History(Path path) throws IOException {
        file = Files.newBufferedWriter(path, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    /** An operation that was carried out. {@code fence} is null where there is none. */
    synchronized void record(String key, String operation, long invoked, long returned, Long fence) {
        try {
            file.write("{\"side\":\"java\",\"proc\":" + process + ",\"key\":\"" + key + "\",\"op\":\"" + operation
                + "\",\"invoke_ns\":" + invoked + ",\"return_ns\":" + returned + ",\"fence\":" + fence + "}\n");
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    synchronized void flush() throws IOException {
        file.flush();
    }

    @Override
    public synchronized void close() throws IOException {
        file.close();
    }
}

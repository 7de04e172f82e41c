package dlock.interop;

import java.io.BufferedWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/** What this process did, one JSON object a line, in the format of dlock's testkit. */
final class History implements AutoCloseable {
    private final long process;
    private final BufferedWriter file;

    History(long process, Path path) throws IOException {
        this.process = process;
        file = Files.newBufferedWriter(path, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    /** An operation that was carried out. {@code fence} is null where there is none. */
    void record(long hold, String key, String operation, long invoked, long returned, Long fence) {
        try {
            file.write("{\"process\":" + process + ",\"hold\":" + hold + ",\"key\":\"" + key + "\",\"op\":\"" + operation
                + "\",\"invoked\":" + invoked + ",\"returned\":" + returned + ",\"outcome\":\"ok\",\"fence\":" + fence
                + ",\"valid_until\":null}\n");
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    void flush() throws IOException {
        file.flush();
    }

    @Override
    public void close() throws IOException {
        file.close();
    }
}

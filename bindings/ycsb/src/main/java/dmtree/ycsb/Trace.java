package dmtree.ycsb;

import java.io.BufferedOutputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Set;

/** Operations in a file, in the form of the client's own binding {@code basic}. */
final class Trace implements AutoCloseable {
  private final OutputStream out;

  Trace(String path) throws IOException {
    out = new BufferedOutputStream(new FileOutputStream(path));
  }

  void read(String what, String table, String key, Set<String> fields) {
    String names = fields == null ? "<all fields>" : String.join(" ", fields) + " ";
    line(what + " " + table + " " + key + " [ " + names + "]");
  }

  void write(String what, String table, String key, Map<String, byte[]> fields) {
    StringBuilder text = new StringBuilder(what + " " + table + " " + key + " [ ");
    fields.forEach((name, content) -> text.append(name).append('=').append(latin(content)).append(' '));
    line(text.append(']').toString());
  }

  void delete(String table, String key) {
    line("DELETE " + table + " " + key);
  }

  /** Each byte is a character. */
  private static String latin(byte[] content) {
    return new String(content, StandardCharsets.ISO_8859_1);
  }

  private synchronized void line(String text) {
    try {
      out.write((text + "\n").getBytes(StandardCharsets.ISO_8859_1));
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  @Override
  public synchronized void close() throws IOException {
    out.close();
  }
}

package dmtree.ycsb;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.Vector;
import java.util.concurrent.ConcurrentHashMap;
import site.ycsb.ByteIterator;
import site.ycsb.DB;
import site.ycsb.DBException;
import site.ycsb.Status;

/**
 * The binding: the threads of a client share one pool, and a table is an index.
 *
 * <p>Properties: {@code dmtree.connect} (HOST:PORT of the first memory node) with {@code
 * dmtree.keyfile}, or a pool in this process with {@code dmtree.memory} and {@code dmtree.durable};
 * {@code dmtree.trace} names a file for the operations.
 */
public final class DmtreeClient extends DB {
  /** Tries of an update against others of the same record. */
  private static final int MOST_TRIES = 1000;

  private static Shared shared;

  private Shared mine;

  /** What the threads of a client share. */
  private static final class Shared {
    final long pool;
    final Trace trace;
    final Map<String, Long> indexes = new ConcurrentHashMap<>();
    int users;

    Shared(Properties properties) throws IOException {
      String address = properties.getProperty("dmtree.connect");
      String path = properties.getProperty("dmtree.trace");
      trace = path == null ? null : new Trace(path);
      if (address == null) {
        String memory = properties.getProperty("dmtree.memory", "1GiB");
        pool = Native.openPool(memory, properties.getProperty("dmtree.durable"));
      } else {
        pool = Native.connect(address, properties.getProperty("dmtree.keyfile"));
      }
    }

    long index(String table) {
      return indexes.computeIfAbsent(table, name -> Native.openIndex(pool, name));
    }

    void close() throws IOException {
      indexes.values().forEach(Native::closeIndex);
      Native.closePool(pool);
      if (trace != null) {
        trace.close();
      }
    }
  }

  @Override
  public void init() throws DBException {
    synchronized (DmtreeClient.class) {
      try {
        if (shared == null) {
          shared = new Shared(getProperties());
        }
      } catch (DmtreeException | IOException e) {
        throw new DBException(e);
      }
      shared.users += 1;
      mine = shared;
    }
  }

  @Override
  public void cleanup() throws DBException {
    synchronized (DmtreeClient.class) {
      mine.users -= 1;
      if (mine.users > 0) {
        return;
      }
      shared = null;
      try {
        mine.close();
      } catch (DmtreeException | IOException e) {
        throw new DBException(e);
      }
    }
  }

  @Override
  public Status read(
      String table, String key, Set<String> fields, Map<String, ByteIterator> result) {
    if (mine.trace != null) {
      mine.trace.read("READ", table, key, fields);
    }
    return status(
        () -> {
          byte[] value = Native.get(mine.index(table), bytes(key));
          if (value == null) {
            return Status.NOT_FOUND;
          }
          Fields.select(value, fields, result);
          return Status.OK;
        });
  }

  @Override
  public Status scan(
      String table,
      String from,
      int count,
      Set<String> fields,
      Vector<HashMap<String, ByteIterator>> result) {
    if (mine.trace != null) {
      mine.trace.read("SCAN", table, from + " " + count, fields);
    }
    return status(
        () -> {
          long scan = Native.scan(mine.index(table), bytes(from), count);
          try {
            for (byte[][] pair = Native.next(scan); pair != null; pair = Native.next(scan)) {
              HashMap<String, ByteIterator> record = new HashMap<>();
              Fields.select(pair[1], fields, record);
              result.add(record);
            }
          } finally {
            Native.closeScan(scan);
          }
          return Status.OK;
        });
  }

  /** Replaces some fields: atomic, as others may replace other fields of the record meanwhile. */
  @Override
  public Status update(String table, String key, Map<String, ByteIterator> values) {
    Map<String, byte[]> fields = Fields.of(values);
    if (mine.trace != null) {
      mine.trace.write("UPDATE", table, key, fields);
    }
    return status(
        () -> {
          for (int tries = 0; tries < MOST_TRIES; tries++) {
            byte[] old = Native.get(mine.index(table), bytes(key));
            if (old == null) {
              return Status.NOT_FOUND;
            }
            Map<String, byte[]> all = Fields.decode(old);
            all.putAll(fields);
            int done = Native.compareAndSet(mine.index(table), bytes(key), old, Fields.encode(all));
            if (done == Native.OK) {
              return Status.OK;
            }
          }
          return Status.SERVICE_UNAVAILABLE;
        });
  }

  @Override
  public Status insert(String table, String key, Map<String, ByteIterator> values) {
    Map<String, byte[]> fields = Fields.of(values);
    if (mine.trace != null) {
      mine.trace.write("INSERT", table, key, fields);
    }
    return status(
        () -> {
          Native.put(mine.index(table), bytes(key), Fields.encode(fields));
          return Status.OK;
        });
  }

  @Override
  public Status delete(String table, String key) {
    if (mine.trace != null) {
      mine.trace.delete(table, key);
    }
    return status(
        () -> {
          int done = Native.delete(mine.index(table), bytes(key));
          return done == Native.ABSENT ? Status.NOT_FOUND : Status.OK;
        });
  }

  private interface Call {
    Status run();
  }

  private static Status status(Call call) {
    try {
      return call.run();
    } catch (DmtreeException e) {
      System.err.println("dmtree: " + e.getMessage());
      return Status.ERROR;
    }
  }

  private static byte[] bytes(String key) {
    return key.getBytes(StandardCharsets.UTF_8);
  }
}

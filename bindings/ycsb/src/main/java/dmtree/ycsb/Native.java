package dmtree.ycsb;

/** The calls of the C library. Errors are a {@link DmtreeException}; handles are numbers. */
final class Native {
  /** The call took effect. */
  static final int OK = 0;
  /** Nothing was changed: the key is absent. */
  static final int ABSENT = 2;

  static {
    String library = System.getProperty("dmtree.library");
    if (library == null) {
      System.loadLibrary("dmtree_ycsb");
    } else {
      System.load(library);
    }
  }

  private Native() {}

  /** A pool in this process; {@code durable} is null or the directory of its journal. */
  static native long openPool(String memory, String durable);

  /** Joins a pool of several processes; {@code keyFile} is null without a key. */
  static native long connect(String address, String keyFile);

  static native void closePool(long pool);

  static native long openIndex(long pool, String name);

  static native void closeIndex(long index);

  /** Null without a value. */
  static native byte[] get(long index, byte[] key);

  static native int put(long index, byte[] key, byte[] value);

  static native int compareAndSet(long index, byte[] key, byte[] expected, byte[] value);

  static native int delete(long index, byte[] key);

  /** A scan from a key on. */
  static native long scan(long index, byte[] low, long limit);

  /** Key and value; null behind the last pair. */
  static native byte[][] next(long scan);

  static native void closeScan(long scan);
}

package dmtree.ycsb;

/** An error of the library: its status, and a message that names a way out. */
public final class DmtreeException extends RuntimeException {
  private static final long serialVersionUID = 1;

  /** A status of {@code dmtree.h}. */
  private final int status;

  /** Made by the native calls. */
  public DmtreeException(int status, String message) {
    super(message);
    this.status = status;
  }

  /** The status of {@code dmtree.h}. */
  public int status() {
    return status;
  }
}

package dmtree.ycsb;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import site.ycsb.ByteArrayByteIterator;
import site.ycsb.ByteIterator;

/**
 * The fields of a record as the value of its key: of each field the lengths of name and content, 2
 * and 4 bytes big endian, and then both.
 */
final class Fields {
  private Fields() {}

  static byte[] encode(Map<String, byte[]> fields) {
    int length = 0;
    Map<byte[], byte[]> parts = new LinkedHashMap<>();
    for (Map.Entry<String, byte[]> field : fields.entrySet()) {
      byte[] name = field.getKey().getBytes(StandardCharsets.UTF_8);
      parts.put(name, field.getValue());
      length += 6 + name.length + field.getValue().length;
    }
    ByteBuffer out = ByteBuffer.allocate(length);
    for (Map.Entry<byte[], byte[]> part : parts.entrySet()) {
      out.putShort((short) part.getKey().length).putInt(part.getValue().length);
      out.put(part.getKey()).put(part.getValue());
    }
    return out.array();
  }

  static Map<String, byte[]> decode(byte[] value) {
    Map<String, byte[]> fields = new LinkedHashMap<>();
    ByteBuffer in = ByteBuffer.wrap(value);
    while (in.hasRemaining()) {
      byte[] name = new byte[Short.toUnsignedInt(in.getShort())];
      byte[] content = new byte[in.getInt()];
      in.get(name).get(content);
      fields.put(new String(name, StandardCharsets.UTF_8), content);
    }
    return fields;
  }

  /** The fields that are wanted, all for null, as the client takes them. */
  static void select(byte[] value, Set<String> wanted, Map<String, ByteIterator> result) {
    for (Map.Entry<String, byte[]> field : decode(value).entrySet()) {
      if (wanted == null || wanted.contains(field.getKey())) {
        result.put(field.getKey(), new ByteArrayByteIterator(field.getValue()));
      }
    }
  }

  /** What the client writes; an iterator of it is read once. */
  static Map<String, byte[]> of(Map<String, ByteIterator> values) {
    Map<String, byte[]> fields = new LinkedHashMap<>();
    values.forEach((name, content) -> fields.put(name, content.toArray()));
    return fields;
  }
}

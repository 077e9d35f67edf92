"""Many keys in one call: lists of bytes, or arrays of numpy with keys of one length."""

from . import _dmtree


def _rows(array, what):
    """A contiguous array of bytes, and the length of a row."""
    import numpy as np

    array = np.asarray(array)
    if array.ndim == 1 and array.dtype.kind in "SV":
        array = np.ascontiguousarray(array)
        width = array.dtype.itemsize
        return array.view(np.uint8).reshape(len(array), width), width
    if array.ndim == 1 and array.dtype.kind == "u":
        # Big endian: the order of the bytes is that of the numbers.
        array = array.astype(array.dtype.newbyteorder(">"))
        return array.view(np.uint8).reshape(len(array), array.dtype.itemsize), array.dtype.itemsize
    if array.ndim == 2 and array.dtype == np.uint8:
        return np.ascontiguousarray(array), array.shape[1]
    raise TypeError(
        f"{what}s are a 2-dimensional array of uint8, or a 1-dimensional one of bytes or of "
        f"unsigned integers, not {array.ndim}-dimensional of {array.dtype}"
    )


def _is_array(keys):
    return hasattr(keys, "__array_interface__")


def get_many(index, keys):
    """The values of several keys, faster than one by one.

    From a list of keys: a list with the value of each, `None` for one that is absent. From an
    array of numpy (2-dimensional of uint8, or 1-dimensional of bytes or of unsigned integers,
    which count as their bytes in big endian): an array of uint8 with a row for each key, as long
    as the longest value, and an array with the length of each value, -1 for a key that is absent.
    """
    if not _is_array(keys):
        return index.get_list(keys)
    import numpy as np

    rows, width = _rows(keys, "key")
    values, lengths = _dmtree.get_rows(index, rows.reshape(-1), width)
    values = np.frombuffer(values, np.uint8)
    return values.reshape(len(rows), -1 if len(values) else 0), np.frombuffer(lengths, np.int32)


def load(index, keys, values=None, *, sorted=False):
    """Stores many pairs: the fastest way to fill an index that is empty. How many.

    From a mapping or pairs (`values` is left out), or from arrays of numpy as of `get_many`. With
    `sorted` the keys ascend strictly.
    """
    if values is None:
        return index.load_pairs(keys, sorted=sorted)
    rows, key_bytes = _rows(keys, "key")
    value_rows, value_bytes = _rows(values, "value")
    return _dmtree.load_rows(
        index, (rows.reshape(-1), key_bytes), (value_rows.reshape(-1), value_bytes), sorted
    )

"""dmtree: an ordered key-value index on disaggregated memory, its simulator and its benchmark.

    >>> import dmtree
    >>> with dmtree.Pool.embedded(memory="16MiB") as pool:
    ...     users = pool.create("users")
    ...     users["ada"] = "1815"
    ...     users["ada"]
    b'1815'

Keys and values are bytes; a text counts as its UTF-8. Without `durable` a pool in this process is
gone with it.
"""

import atexit as _atexit
import os as _os

from . import errors
from ._dmtree import AsyncIndex, Index, Items, Pool, __version__
from ._dmtree import after_fork as _after_fork
from ._dmtree import before_exit as _before_exit
from .arrays import get_many, load
from .errors import Error
from .lab import bench, experiments, results, simulate

_atexit.register(_before_exit)
_os.register_at_fork(after_in_child=_after_fork)

__all__ = [
    "AsyncIndex",
    "Error",
    "Index",
    "Items",
    "Pool",
    "__version__",
    "bench",
    "errors",
    "experiments",
    "get_many",
    "load",
    "results",
    "simulate",
]

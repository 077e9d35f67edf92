"""A million keys from arrays of numpy: the time of a load, and of reads of many keys a call."""

import time

import dmtree
import numpy as np

KEYS = 1_000_000
BATCH = 4096

with dmtree.Pool.embedded(memory="512MiB") as pool:
    index = pool.create("numbers")
    keys = np.arange(KEYS, dtype=np.uint64)
    began = time.perf_counter()
    dmtree.load(index, keys, keys * 3, sorted=True)
    print(f"load: {KEYS / (time.perf_counter() - began) / 1e6:.2f} million keys a second")

    asked = np.random.default_rng(1).integers(0, KEYS, KEYS, dtype=np.uint64)
    began = time.process_time()
    for at in range(0, KEYS, BATCH):
        part = asked[at : at + BATCH]
        values, lengths = dmtree.get_many(index, part)
        assert (lengths == 8).all() and (values.view(">u8").ravel() == part * 3).all()
    spent = time.process_time() - began
    print(f"get_many: {KEYS / spent / 1e6:.2f} million keys a second of CPU time")

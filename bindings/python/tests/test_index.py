"""The package against dictionaries, and against what a program may do wrong.

    python -m unittest discover -s bindings/python/tests
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest

import dmtree
from dmtree import errors


class Case(unittest.TestCase):
    def setUp(self):
        self.pool = dmtree.Pool.embedded(memory="32MiB")
        self.index = self.pool.create("a")

    def tearDown(self):
        self.pool.close()


class Mapping(Case):
    def test_it_gives_what_a_dictionary_gives(self):
        draw, model = random.Random(7), {}
        keys = [bytes([draw.randrange(4) for _ in range(draw.randrange(1, 4))]) for _ in range(60)]
        for n in range(4000):
            key, value = draw.choice(keys), str(n).encode()
            what = draw.randrange(13)
            if what == 0:
                self.index[key] = value
                model[key] = value
            elif what == 1:
                self.assertEqual(self.index.insert(key, value), key not in model)
                model.setdefault(key, value)
            elif what == 2:
                self.assertEqual(self.index.replace(key, value), key in model)
                if key in model:
                    model[key] = value
            elif what == 3:
                self.assertEqual(self.index.delete(key), model.pop(key, None) is not None)
            elif what == 4:
                self.assertEqual(self.index.get(key, b"?"), model.get(key, b"?"))
            elif what == 5:
                self.assertEqual(self.index.setdefault(key, value), model.setdefault(key, value))
            elif what == 6:
                low, high = sorted([draw.choice(keys), draw.choice(keys)])
                due = [(k, v) for k, v in sorted(model.items()) if low <= k < high]
                self.assertEqual(list(self.index[low:high]), due)
                self.assertEqual(list(self.index.items(low, high, reverse=True)), due[::-1])
            elif what == 7:
                old = model.get(key, b"-")
                done = self.index.compare_and_set(key, old, value)
                self.assertEqual(done, key in model)
                if done:
                    model[key] = value
            elif what == 8:
                self.assertEqual(self.index.exchange(key, value), model.get(key))
                model[key] = value
            elif what == 9:
                self.assertEqual(self.index.take(key), model.pop(key, None))
            elif what == 10:
                self.assertEqual(self.index.pop(key, value), model.pop(key, value))
            elif what == 11:
                old = model.get(key, b"-") if n % 2 else b"other"
                self.assertEqual(self.index.compare_and_swap(key, old, value), model.get(key))
                if model.get(key) == old:
                    model[key] = value
            else:
                some = {draw.choice(keys): value for _ in range(5)}
                self.index.update(some)
                model.update(some)
        self.assertEqual(dict(self.index.items()), model)
        self.assertEqual(list(self.index), sorted(model))
        self.assertEqual(list(reversed(self.index)), sorted(model, reverse=True))
        self.assertEqual(list(self.index.values()), [model[k] for k in sorted(model)])
        self.assertEqual(len(self.index), len(model))
        self.assertAlmostEqual(self.index.len_estimate(), len(model), delta=len(model) / 5)
        self.assertEqual(self.index.first(), min(model.items()))
        self.assertEqual(self.index.pop_last(), max(model.items()))

    def test_texts_bytes_and_buffers_are_keys(self):
        self.index["ä"] = bytearray(b"x")
        self.assertEqual(self.index["ä".encode()], b"x")
        self.index[memoryview(b"m")] = ""
        self.assertIn(b"m", self.index)
        self.assertEqual(self.index["m"], b"")

    def test_counters_ranges_and_prefixes(self):
        self.assertEqual([self.index.fetch_add("n", 2) for _ in range(3)], [0, 2, 4])
        self.index.update({f"k{i:03}": str(i) for i in range(600)})
        self.assertEqual(len(list(self.index.keys(prefix="k1"))), 100)
        self.assertEqual(list(self.index.keys("k598")), [b"k598", b"k599", b"n"])
        self.assertEqual(len(list(self.index.values(limit=7))), 7)
        self.assertEqual(self.index.delete_range("k100", "k200"), 100)
        self.index.clear()
        self.assertIsNone(self.index.first())

    def test_a_pool_that_lasts(self):
        with tempfile.TemporaryDirectory() as directory:
            with dmtree.Pool.embedded(memory="16MiB", durable=directory) as pool:
                pool.create("a")["k"] = "v"
            with dmtree.Pool.embedded(memory="16MiB", durable=directory) as pool:
                self.assertEqual(pool.open("a")["k"], b"v")


class Wrong(Case):
    def test_types(self):
        for key in [1, None, 2.5, ["a"], object()]:
            with self.assertRaisesRegex(TypeError, "bytes or str"):
                self.index[key] = "x"
        with self.assertRaisesRegex(TypeError, "bytes or str"):
            self.index["a"] = 7
        with self.assertRaisesRegex(TypeError, "a list, not one key"):
            dmtree.get_many(self.index, "abc")
        with self.assertRaisesRegex(TypeError, "is no option"):
            self.pool.create("b", colour=3)
        with self.assertRaisesRegex(ValueError, "no step"):
            self.index["a":"b":2]
        with self.assertRaises(TypeError):
            bool(self.index)

    def test_values(self):
        for key in [b"", b"k" * 2000]:
            with self.assertRaises(errors.InvalidArgument) as caught:
                self.index[key] = "x"
            self.assertFalse(caught.exception.effect_unknown)
        with self.assertRaises(ValueError):
            dmtree.Pool.embedded(memory="much")
        with self.assertRaises(KeyError):
            self.index["absent"]
        with self.assertRaises(KeyError):
            del self.index["absent"]
        with self.assertRaises(KeyError):
            self.index.pop("absent")
        with self.assertRaisesRegex(TypeError, "one default, not 2"):
            self.index.pop("absent", 1, 2)
        self.assertIsNone(self.index.pop("absent", None))
        with self.assertRaises(errors.NotFound):
            self.pool.open("none")
        with self.assertRaises(errors.Exists):
            self.pool.create("a")
        with self.assertRaises(errors.InvalidArgument):
            self.pool.create("b", leaf_capacity=33)
        with self.assertRaisesRegex(ValueError, "wait is -1"):
            dmtree.Pool.connect("127.0.0.1:1", wait=-1)
        with self.assertRaises(ConnectionError):
            dmtree.Pool.connect("127.0.0.1:1", wait=0.2)

    def test_a_full_pool_says_so(self):
        with dmtree.Pool.embedded(memory="4MiB") as pool:
            index = pool.create("a")
            with self.assertRaises(errors.Full):
                for n in range(100_000):
                    index.put(str(n), b"x" * 1000)
            self.assertEqual(len(index[str(0)]), 1000)

    def test_closed_pools_and_their_iterators(self):
        self.index.update({str(i): "x" for i in range(1000)})
        iterator = self.index.items()
        next(iterator)
        waiting = self.index.asynchronous()
        self.pool.close()
        self.pool.close()
        calls = [
            lambda: self.index["1"],
            lambda: next(iterator),
            lambda: len(self.index),
            lambda: self.index.len_estimate(),
            lambda: self.index.exchange("1", "y"),
            lambda: self.index.pop("1", None),
            lambda: self.pool.list(),
            lambda: asyncio.run(waiting.get("1")),
            lambda: asyncio.run(waiting.take("1")),
        ]
        for call in calls:
            with self.assertRaises(errors.Closed):
                call()
        self.assertIn("closed", repr(self.pool))

    def test_a_dropped_pool_leaves_its_indexes(self):
        index = dmtree.Pool.embedded(memory="16MiB").create("b")
        index["k"] = "v"
        self.assertEqual(index["k"], b"v")
        iterator = dmtree.Pool.embedded(memory="16MiB").create("b").items()
        self.assertEqual(list(iterator), [])

    def test_an_index_that_is_removed(self):
        self.index.update({f"{i:04}": "x" for i in range(1000)})
        iterator = self.index.items()
        next(iterator)
        self.pool.drop("a")
        with self.assertRaises(errors.Closed):
            self.index["0001"]
        with self.assertRaises(errors.Closed):
            list(iterator)

    def test_a_fork_has_no_handles_of_its_parent(self):
        iterator = self.index.items()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with self.assertRaisesRegex(errors.Closed, "forked"):
                    next(iterator)
                self.index["k"] = "v"
            except errors.Closed as e:
                own = dmtree.Pool.embedded(memory="16MiB")
                own.create("c")["k"] = "v"
                status = 0 if "forked" in str(e) else 2
            finally:
                self.pool.close()
                os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.index["k"] = "v"


class Concurrency(Case):
    def test_threads_share_an_index(self):
        def add():
            for _ in range(500):
                self.index.fetch_add("n", 1)

        threads = [threading.Thread(target=add) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        self.assertEqual(self.index.fetch_add("n", 0), 2000)

    def test_calls_that_are_awaited(self):
        async def work():
            index = self.index.asynchronous()
            await asyncio.gather(*(index.put(f"{i:04}", str(i)) for i in range(400)))
            values = await asyncio.gather(*(index.get(f"{i:04}") for i in range(400)))
            self.assertEqual(values, [str(i).encode() for i in range(400)])
            self.assertEqual(await index.get_many(["0007", "none"]), [b"7", None])
            self.assertTrue(await index.compare_and_set("0007", "7", "8"))
            self.assertFalse(await index.insert("0007", "9"))
            self.assertTrue(await index.replace("0007", "9"))
            self.assertFalse(await index.compare_and_delete("0007", "8"))
            self.assertEqual(await index.exchange("0007", "10"), b"9")
            self.assertEqual(await index.compare_and_swap("0007", "9", "11"), b"10")
            self.assertEqual(await index.take("0007"), b"10")
            self.assertIsNone(await index.take("0007"))
            self.assertGreater(await index.len_estimate(), 300)
            self.assertFalse(await index.delete("0007"))
            with self.assertRaises(errors.InvalidArgument):
                await index.put("", "x")
            with self.assertRaises(TypeError):
                await index.put(1, "x")
            with self.assertRaises(TimeoutError):
                async with asyncio.timeout(0):
                    await index.get("0001")
            self.assertEqual(await index.get("0001"), b"1")

        asyncio.run(work())
        self.assertEqual(len(self.index), 399)

    def interrupted(self, code):
        """Runs a program, and interrupts it once it has said that it begins."""
        # Programs in the background of a shell ignore the signal unless they ask for it.
        asks = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        code = asks + textwrap.dedent(code)
        program = subprocess.Popen(
            [sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        program.stdout.readline()
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=60)
        self.assertIn(b"KeyboardInterrupt", said)

    def test_ctrl_c_ends_a_long_scan(self):
        self.interrupted(
            """
            import dmtree
            pool = dmtree.Pool.embedded(memory="32MiB")
            index = pool.create("a")
            index.update({str(i): "x" for i in range(20_000)})
            print("begins")
            while True:
                for pair in index.items():
                    pass
            """
        )

    def test_ctrl_c_ends_a_long_count(self):
        self.interrupted(
            """
            import dmtree
            pool = dmtree.Pool.embedded(memory="64MiB")
            index = pool.create("a")
            index.load_pairs({f"{i:08}": "x" for i in range(300_000)})
            print("begins")
            while True:
                len(index)
            """
        )

    def test_ctrl_c_ends_an_experiment(self):
        self.interrupted(
            """
            import dmtree
            print("begins")
            while True:
                dmtree.results("quick-sim", systems="dmtree", keys=100_000)
            """
        )


if __name__ == "__main__":
    unittest.main()

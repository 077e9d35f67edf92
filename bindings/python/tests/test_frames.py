"""Arrays of numpy and frames of pandas; skipped, with a line, where they are not installed."""

import json
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import dmtree

try:
    import numpy as np
except ImportError:
    np = None
try:
    import pandas
except ImportError:
    pandas = None


def flat(record, head=""):
    """The fields of a record, those of records inside of it by the names of both."""
    fields = {}
    for name, value in record.items():
        if isinstance(value, dict):
            fields |= flat(value, f"{head}{name}.")
        else:
            fields[head + name] = value
    return fields


@unittest.skipIf(np is None, "numpy is not installed")
class Arrays(unittest.TestCase):
    def setUp(self):
        self.pool = dmtree.Pool.embedded(memory="64MiB")
        self.index = self.pool.create("a")

    def tearDown(self):
        self.pool.close()

    def test_numbers(self):
        keys = np.arange(0, 20_000, 2, dtype=np.uint64)
        self.assertEqual(dmtree.load(self.index, keys, keys + 1, sorted=True), 10_000)
        asked = np.array([4, 5, 19_998, 2**63], dtype=np.uint64)
        values, lengths = dmtree.get_many(self.index, asked)
        self.assertEqual(lengths.tolist(), [8, -1, 8, -1])
        self.assertEqual(values[[0, 2]].copy().view(">u8").ravel().tolist(), [5, 19_999])
        self.assertEqual(list(self.index.keys(limit=2)), [bytes(8), b"\0" * 7 + b"\2"])

    def test_texts_and_rows(self):
        keys = np.array([f"{i:08}" for i in range(1000)], dtype="S8")
        dmtree.load(self.index, keys, keys)
        values, lengths = dmtree.get_many(self.index, keys[::-1])
        self.assertTrue((lengths == 8).all())
        self.assertEqual(values[0].tobytes(), b"00000999")
        rows = keys.view(np.uint8).reshape(-1, 8)
        values, _ = dmtree.get_many(self.index, rows[:5, ::1])
        self.assertEqual(values.tobytes(), rows[:5].tobytes())
        self.assertEqual(dmtree.get_many(self.index, [b"00000001", "x"]), [b"00000001", None])

    def test_values_of_several_lengths_and_none(self):
        self.index.update({"a": "", "b": "xyz"})
        values, lengths = dmtree.get_many(self.index, np.array(["a", "b", "c"], dtype="S1"))
        self.assertEqual((values.shape, lengths.tolist()), ((3, 3), [0, 3, -1]))
        values, lengths = dmtree.get_many(self.index, np.array([], dtype="S1"))
        self.assertEqual((values.shape[0], lengths.tolist()), (0, []))

    def test_arrays_that_are_no_keys(self):
        for wrong in [np.zeros(3), np.zeros((2, 2), np.uint16), np.zeros((2, 2, 2), np.uint8)]:
            with self.assertRaisesRegex(TypeError, "2-dimensional array of uint8"):
                dmtree.get_many(self.index, wrong)
        with self.assertRaisesRegex(ValueError, "1 byte at least"):
            dmtree.get_many(self.index, np.zeros((3, 0), np.uint8))
        keys = np.arange(4, dtype=np.uint64)
        with self.assertRaisesRegex(ValueError, "4 keys and 3 values"):
            dmtree.load(self.index, keys, keys[:3])
        with self.assertRaises(dmtree.errors.InvalidArgument):
            dmtree.load(self.index, keys[::-1], keys, sorted=True)


class Laboratory(unittest.TestCase):
    SETTINGS = {"systems": ["dmtree", "fptree"], "workloads": ["search"], "keys": 5000}

    def test_experiments_are_listed(self):
        self.assertIn("fast26", dmtree.experiments())

    def test_settings_that_are_none(self):
        with self.assertRaisesRegex(ValueError, "dmtre"):
            dmtree.results("quick-sim", systems="dmtre")
        with self.assertRaisesRegex(ValueError, "colour"):
            dmtree.results("quick-sim", colour="red")
        with self.assertRaisesRegex(ValueError, "no experiment|unknown|nothing"):
            dmtree.results("fast62")

    @unittest.skipIf(pandas is None, "pandas is not installed")
    def test_frames_have_what_results_json_has(self):
        cells = dmtree.results("quick-sim", **self.SETTINGS)["cells"]
        frame = dmtree.bench("quick-sim", **self.SETTINGS)
        self.assertEqual(len(frame), len(cells))
        times = {"sim.real_seconds", "sim.sim_verbs_per_s"}
        for at, cell in enumerate(cells):
            due = flat(cell)
            self.assertLessEqual(set(due), set(frame.columns))
            for name in set(frame.columns) - times:
                found = frame[name].iloc[at]
                if due.get(name) is None:
                    self.assertTrue(found is None or found != found, f"{name}: {found}")
                else:
                    self.assertEqual(found, due[name], name)
        one = dmtree.simulate("dmtree", "search", keys=5000)
        self.assertEqual(one["mops"].tolist(), frame["mops"][frame.system == "dmtree"].tolist())

    def test_the_program_gives_the_same(self):
        program = shutil.which("dmtree")
        if program is None:
            self.skipTest("there is no program dmtree on the path")
        with tempfile.TemporaryDirectory() as out:
            words = ["bench", "quick-sim", "--systems=dmtree,fptree", "--workloads=search"]
            subprocess.run(
                [program, *words, "--keys=5000", "-q", "--out", out], check=True, capture_output=True
            )
            written = json.loads((Path(out) / "results.json").read_text())["cells"]
        ours = dmtree.results("quick-sim", **self.SETTINGS)["cells"]
        for cell in ours + written:
            # The time that the simulation took is another each time.
            for name in ["real_seconds", "sim_verbs_per_s"]:
                del cell["sim"][name]
        self.assertEqual(ours, written)


if __name__ == "__main__":
    unittest.main()

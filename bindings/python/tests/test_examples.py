"""The programs of `examples/` run, and end well."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from importlib.util import find_spec
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
EXAMPLES = PACKAGE / "examples"


def blocks(document):
    """The programs in a document."""
    return re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)


def run(program, *, directory):
    """Runs a text as a program; what it prints."""
    env = {**os.environ, "MPLBACKEND": "Agg"}
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=directory, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"it ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


class Examples(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)

    def example(self, name):
        return run((EXAMPLES / name).read_text(), directory=self.directory.name)

    def test_quickstart(self):
        printed = self.example("quickstart.py")
        for line in ["ada was born in 1815", "a to b: ['ada', 'alan']", "visit 42: b'42'", "keys: 104"]:
            self.assertIn(line, printed)

    def test_a_program_that_ends_behind_an_await_ends_well(self):
        # A worker may still be inside of its call into the event loop.
        for _ in range(10):
            self.example("quickstart.py")

    def test_the_readme(self):
        [program] = blocks(PACKAGE / "README.md")
        printed = run(program, directory=self.directory.name)
        self.assertEqual(printed, "b'1815' 3 [(b'ada', b'1815'), (b'alan', b'1912')]\n")

    @unittest.skipUnless(find_spec("pandas"), "pandas is not installed")
    def test_the_readme_of_the_repository(self):
        [program] = blocks(PACKAGE.parent.parent / "README.md")
        printed = run(program, directory=self.directory.name)
        for part in ["b'1815' [(b'ada', b'1815')]", "mops", "sherman"]:
            self.assertIn(part, printed)

    @unittest.skipUnless(find_spec("numpy"), "numpy is not installed")
    def test_arrays(self):
        self.assertIn("million keys a second", self.example("arrays.py"))

    @unittest.skipUnless(find_spec("pandas") and find_spec("matplotlib"), "no pandas, or no matplotlib")
    def test_the_notebook(self):
        cells = json.loads((EXAMPLES / "fast26.ipynb").read_text())["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        run("\n".join(code), directory=self.directory.name)
        figure = Path(self.directory.name) / "fast26.png"
        self.assertEqual(figure.read_bytes()[:4], b"\x89PNG")


if __name__ == "__main__":
    unittest.main()

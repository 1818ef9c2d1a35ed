"""The table of faults in the documentation is the one that the tests make."""

from __future__ import annotations

import subprocess
import sys

from tests.faults.table import FILE, ROOT

_PRINT = "import sys; from tests.faults.table import made; sys.stdout.write(made())"


def test_the_table_in_the_documentation_is_made_of_these_tests() -> None:
    done = subprocess.run([sys.executable, "-c", _PRINT], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert FILE.read_text() == done.stdout, "run: python -m tests.faults.table"

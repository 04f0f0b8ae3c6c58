"""A process knows who it is without asking the system."""

from __future__ import annotations

import os
import subprocess
import sys

from stepwell.process import process_id

FORK = """
import os
from stepwell.process import process_id
child = os.fork()
if child == 0:
    os._exit(process_id() != os.getpid())
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_it_is_this_process() -> None:
    assert process_id() == os.getpid()


def test_a_forked_process_is_another_one() -> None:
    told = subprocess.run([sys.executable, "-c", FORK], check=True, capture_output=True, text=True, timeout=60)
    assert told.stdout.strip() == "0"

"""A process with everything loaded that forks a child for each case it is told of, so that many kills take little time."""

from __future__ import annotations

import json
import os
import sys

from tests.faults import crasher


def main() -> None:
    """For each line (the arguments of a crasher, as JSON) say how its child ended: a negative number is the signal."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            crasher.main(*json.loads(line))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()

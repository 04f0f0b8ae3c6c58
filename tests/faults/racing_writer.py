"""A child that begins a transaction when told, and commits it when told, against others that do the same."""

from __future__ import annotations

import sys

from stepwell import Conflict, Scope, Stepwell


def main(url: str, name: str) -> None:
    well, counter = Stepwell(url), Scope.globals()
    for _ in sys.stdin:
        tx = well.transaction("run").begin()
        tx.set_variable("winner", name)
        tx.state(counter).increment("races")
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            tx.commit()
            print("won", flush=True)
        except Conflict:
            print("lost", flush=True)
    well.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

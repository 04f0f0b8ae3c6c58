"""``python -m stepwell.testing.simulation``: simulate many seeds, or look at one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from stepwell.testing.simulation.run import Outcome, simulate

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Simulate the seeds; return 1 if a promise was broken."""
    options = _parser().parse_args(arguments)
    seeds = [options.replay] if options.replay is not None else range(options.first, options.first + options.seeds)
    failed: list[int] = []
    for seed in seeds:
        outcome = simulate(seed)
        if outcome.violations:
            failed.append(seed)
            _keep(options.keep, seed)
        if options.json:
            _say(msgspec.json.encode(_shown(outcome, options.replay is not None)).decode())
        elif options.replay is not None:
            _tell(outcome)
        elif outcome.violations:
            _say(f"seed {seed}: {outcome.violations[0]} (and {len(outcome.violations) - 1} more)")
    if not options.json:
        _say(f"{len(seeds)} seeds, {len(failed)} failed{': ' + ', '.join(map(str, failed)) if failed else ''}")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m stepwell.testing.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many (200)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--replay", type=int, metavar="SEED", help="one seed, with all that happened in it")
    parser.add_argument("--json", action="store_true", help="a JSON line for each seed")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="append seeds that fail to a file")
    return parser


def _shown(outcome: Outcome, is_replay: bool) -> Outcome:
    """Return the report, with the journal only on request."""
    return outcome if is_replay else msgspec.structs.replace(outcome, journal=[], choices=[])


def _tell(outcome: Outcome) -> None:
    start = outcome.journal[0].at_ms
    for event in outcome.journal:
        told = f"{(event.at_ms - start) / 1000:9.3f} s  {event.process:10} {event.what} {event.execution_id} {event.detail}"
        _say(told.rstrip())
    for violation in outcome.violations:
        _say(f"BROKEN: {violation}")
    _say(f"{outcome.executions} executions, {outcome.commits} commits, {outcome.deaths} deaths, {outcome.seconds} virtual seconds")


def _keep(file: Path | None, seed: int) -> None:
    if file is not None:
        with file.open("a", encoding="utf-8") as kept:
            kept.write(f"{seed}\n")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    raise SystemExit(main())

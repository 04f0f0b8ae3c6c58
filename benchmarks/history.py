"""Commits, loading and verification with large states and long histories, on any store."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import msgspec

from benchmarks.measurement import Measurement, Target, at_least, at_most
from benchmarks.plan import Plan
from benchmarks.rounds import in_turns, seconds_each
from benchmarks.workload import beside, grow
from stepwell import Stepwell

__all__ = ["by_history", "by_state_size", "load", "verify"]


def _set_variable(well: Stepwell, execution_id: str, number: int) -> None:
    transaction = well.transaction(execution_id)
    transaction.set_variable("v1", number)
    transaction.commit()


def by_state_size(plan: Plan, url: str) -> Iterator[Measurement]:
    """Measure a commit with a large state, beside one with a small state."""
    large, size, numbers = plan.size(100_000, 1_000), plan.size(200, 10), count()
    with Stepwell(url) as well:
        for execution, keys in (("small", 10), ("large", large)):
            well.create(execution)
            with well.transaction(execution) as transaction:
                for key in range(keys):
                    transaction.set_variable(f"v{key}", key)
            _set_variable(well, execution, 0)  # carries the snapshot that such a large commit makes due
        ours, raws = in_turns(
            plan.rounds,
            seconds_each(size, lambda _: _set_variable(well, "large", next(numbers))),
            seconds_each(size, lambda _: _set_variable(well, "small", next(numbers))),
        )
    yield _time_of(f"{plan.name}.{large}_keys", ours, raws, "the same with 10 keys")


def by_history(plan: Plan, url: str, building_url: str) -> Iterator[Measurement]:
    """Measure a commit after a long history, beside one after ten commits."""
    long, size, numbers = plan.size(100_000, 500), plan.size(200, 10), count()
    grow(plan, building_url, "long", long)
    with Stepwell(url) as well:

        def commit_young(number: int) -> None:
            _set_variable(well, young[0], number)

        def young_round() -> float:
            young[0] = f"young-{next(numbers)}"
            well.create(young[0])
            for number in range(10):
                _set_variable(well, young[0], number)
            return seconds_each(size, commit_young)()

        young = [""]
        ours, raws = in_turns(plan.rounds, seconds_each(size, lambda _: _set_variable(well, "long", next(numbers))), young_round)
    yield _time_of(f"{plan.name}.revision_{long}", ours, raws, "the same from revision 10 on")


def _time_of(name: str, ours: list[float], raws: list[float], raw_is: str) -> Measurement:
    microseconds = [[figure * 1e6 for figure in figures] for figures in (ours, raws)]
    values, raw_values = microseconds
    return beside(name, values, raw_values, raw_is=raw_is, judge=_within, unit="us/commit")


def _within(_value: float, _raw: float, ratio: float) -> Target:
    return at_most("ratio", ratio, 1.3)


def load(plan: Plan, url: str, building_url: str) -> Iterator[Measurement]:
    """Measure loading an execution of ten thousand commits with empty caches."""
    commits = plan.size(10_000, 200)
    for shape, with_steps in (("variables", False), ("steps", True)):
        grow(plan, building_url, shape, commits, with_steps=with_steps)
        file = plan.folder / f"{shape}.snapshot"
        with Stepwell(url) as well:
            file.write_bytes(well.snapshot(shape))
        ours, raws = in_turns(plan.rounds, lambda shape=shape: _load_ms(url, shape), lambda file=file: _read_ms(file))
        yield beside(
            f"{plan.name}.{commits}_{shape}",
            ours,
            raws,
            raw_is="ms to read, hash and decode the same state from a plain file",
            judge=lambda value, _raw, _ratio: at_most("value", value, 50),
            unit="ms",
        )


def _load_ms(url: str, execution_id: str) -> float:
    with Stepwell(url) as well:
        began = time.perf_counter()
        well.load(execution_id)
        return (time.perf_counter() - began) * 1000


def _read_ms(file: Path) -> float:
    began = time.perf_counter()
    data = file.read_bytes()
    hashlib.sha256(data).hexdigest()
    msgspec.json.decode(data.partition(b"\n")[2])
    return (time.perf_counter() - began) * 1000


def verify(plan: Plan, url: str, building_url: str) -> Iterator[Measurement]:
    """Measure verifying the receipt chain of ten thousand commits."""
    commits = plan.size(10_000, 200)
    grow(plan, building_url, "chain", commits)
    with Stepwell(url) as well:
        lines = well.export("chain").splitlines()[1:]

        def walk() -> float:
            began = time.perf_counter()
            result = well.verify("chain")
            if not result.ok or result.receipts != commits + 1:
                raise AssertionError(json.dumps(result.problems))
            return result.receipts / (time.perf_counter() - began)

        ours, raws = in_turns(plan.rounds, walk, lambda: _hash_rate(lines))
    raw_is = "receipts/s hashed and decoded from memory, nothing checked"
    yield beside(
        plan.name, ours, raws, raw_is=raw_is, judge=lambda value, _raw, _ratio: at_least("value", value, 50_000), unit="receipts/s"
    )


def _hash_rate(lines: list[bytes]) -> float:
    began = time.perf_counter()
    for line in lines:
        hashlib.sha256(line).hexdigest()
        msgspec.json.decode(line)
    return len(lines) / (time.perf_counter() - began)

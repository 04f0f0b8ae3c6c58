"""``well.lock`` on every store, alone and contended by eight threads; on Redis beside redis-py's Lock with its defaults.

``pairs`` acquires a free lock and releases it. In ``contended``, eight threads acquire the same lock a number of times; a thread
may get it again before another one wakes up. ``hand_over`` is how often per second a released lock reaches another waiting
thread. With ``_apart``, each thread has its own well, like separate processes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from statistics import median
from typing import NamedTuple

from benchmarks import servers, workload
from benchmarks.holding import Taking, contended, hand_overs, pairs
from benchmarks.measurement import Measurement, Target, at_least
from benchmarks.plan import Plan
from benchmarks.rounds import Work, in_turns, per_second
from benchmarks.subjects import postgres as postgres_subject
from benchmarks.subjects import sqlite as sqlite_subject
from stepwell import Stepwell

__all__ = ["MEASURES"]

_SECONDS = 30  # the lease of both kinds of locks; no thread waits that long

# The least that a lock with a fencing token needs: acquire it if it is free, release it only as its holder.
_ACQUIRE = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('INCR', KEYS[2]) end"
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end"


class Rival(NamedTuple):
    """Another kind of lock, measured alternately with ours."""

    name: str
    take: Taking
    hand_overs: int
    """Hand-overs per round; few for a slow lock."""


def _taking(well: Stepwell) -> Taking:
    return lambda: well.lock("door", seconds=_SECONDS, timeout=60)


def _pairs_size(plan: Plan) -> int:
    return plan.size(300, 5)


def _pairs(plan: Plan, take: Taking, *raws: tuple[str, str, Work, workload.Judge | None]) -> Iterator[Measurement]:
    """Measure acquire and release, beside others that do as much, each with its name, description and target."""
    ours, *others = in_turns(plan.rounds, pairs(_pairs_size(plan), take), *(work for _, _, work, _ in raws))
    for (name, raw_is, _, judge), figures in zip(raws, others, strict=True):
        yield workload.beside(f"{plan.name}.{name}", ours, figures, raw_is=raw_is, judge=judge, unit="pairs/s")


def _contests(plan: Plan, url: str, rival: Rival | None, judge: workload.Judge | None = None) -> Iterator[Measurement]:
    threads = plan.size(workload.THREADS, 3)
    with ExitStack() as opened:
        wells = [opened.enter_context(Stepwell(url)) for _ in range(1 if url == "memory://" else threads)]
        takes = {"": [_taking(wells[0])] * threads}
        if len(wells) > 1:
            takes["_apart"] = [_taking(well) for well in wells]
        for name, kind, turns, rival_turns in (
            ("contended", contended, plan.size(25, 1), plan.size(25, 1)),
            ("hand_over", hand_overs, plan.size(80, 8), 0 if rival is None else plan.size(rival.hand_overs, 4)),
        ):
            ours = {f"{name}{suffix}": kind(each, turns) for suffix, each in takes.items()}
            theirs = None if rival is None else kind([rival.take] * threads, rival_turns)
            yield from _contest(plan, ours, theirs, "" if rival is None else f"turns/s of {rival.name}", judge)


def _contest(
    plan: Plan, ours: dict[str, Work], theirs: Work | None, raw_is: str, judge: workload.Judge | None
) -> Iterator[Measurement]:
    """Measure contended locks, beside a rival's; only those of one well have a target."""
    figures = in_turns(plan.rounds, *ours.values(), *([] if theirs is None else [theirs]))
    for number, (name, values) in enumerate(zip(ours, figures, strict=False)):
        full, unit = f"{plan.name}.{name}", "turns/s"
        if theirs is None:
            yield Measurement(full, median(values), unit)
        else:
            yield workload.beside(full, values, figures[-1], raw_is=raw_is, judge=None if number else judge, unit=unit)


def memory(plan: Plan) -> Iterator[Measurement]:
    """Measure locks of a well in memory."""
    lock, url = threading.Lock(), servers.URLS["memory"](plan)
    rival = Rival("threading.Lock", lambda: lock, 80)
    with Stepwell(url) as well:
        yield from _pairs(plan, _taking(well), ("pairs", f"pairs/s of {rival.name}", pairs(_pairs_size(plan), rival.take), None))
    yield from _contests(plan, url, rival)


def _in_tables(plan: Plan, url: str, table: workload.Yardstick) -> Iterator[Measurement]:
    def two_rows() -> float:
        return table.single(2 * _pairs_size(plan)) / 2

    with Stepwell(url) as well:
        yield from _pairs(plan, _taking(well), ("pairs", f"pairs of {table.single_is}", two_rows, None))
    yield from _contests(plan, url, None)


def sqlite(plan: Plan) -> Iterator[Measurement]:
    """Measure locks in a SQLite file."""
    yield from _in_tables(plan, servers.URLS["sqlite"](plan), sqlite_subject.RawTable(plan))


def postgres(plan: Plan) -> Iterator[Measurement]:
    """Measure locks in a PostgreSQL database."""
    yield from _in_tables(plan, servers.URLS["postgres"](plan), postgres_subject.RawTable(plan))


def redis(plan: Plan) -> Iterator[Measurement]:
    """Measure locks in Redis, beside redis-py's, which sleeps 0.1 s between attempts, and beside two bare scripts."""
    url, client = servers.URLS["redis"](plan), servers.redis_client(plan)
    acquire, release = str(client.script_load(_ACQUIRE)), str(client.script_load(_RELEASE))

    def two_scripts(number: int) -> None:
        client.evalsha(acquire, 2, "raw-door", "raw-fence", str(number), str(_SECONDS * 1000))
        client.evalsha(release, 1, "raw-door", str(number))

    rival = Rival("redis-py's Lock", lambda: client.lock("rival-door", timeout=_SECONDS), 20)
    size = _pairs_size(plan)
    with Stepwell(url) as well:
        yield from _pairs(
            plan,
            _taking(well),
            ("pairs", f"pairs/s of {rival.name}", pairs(size, rival.take), _at_least(0.95)),
            ("scripts", "pairs/s of two scripts that take, with a fence, and give back", per_second(size, two_scripts), None),
        )
    yield from _contests(plan, url, rival, _at_least(1.2))


def _at_least(wanted: float) -> workload.Judge:
    def judge(_value: float, _raw: float, ratio: float) -> Target:
        return at_least("ratio", ratio, wanted)

    return judge


MEASURES = {"memory": memory, "sqlite": sqlite, "postgres": postgres, "redis": redis}

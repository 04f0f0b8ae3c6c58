"""Tables of contests: the work, the contenders and the sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["CONTESTS", "OURS", "STEPS_EACH", "Contender", "Contest", "chosen", "contenders_of"]

OURS = "stepwell"
STEPS_EACH = 10
"""The number of steps of a workflow."""


@dataclass(frozen=True)
class Contender:
    """One way to use a product. ``stepwell.async`` and ``stepwell.blocking`` are two ways to use one product."""

    name: str
    module: str
    kind: str
    stores: tuple[str, ...]
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def product(self) -> str:
        """The name without the way of use."""
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class Contest:
    """A piece of work on a store, which its contenders do alternately."""

    subject: str
    work: str
    store: str
    unit: str
    size: int
    quick_size: int
    rounds: int = 5

    @property
    def name(self) -> str:
        """For example ``steps.alone.sqlite``."""
        return f"{self.subject}.{self.work}.{self.store}"


_PLAYERS = "benchmarks.rivals.players"
_ALL = ("memory", "sqlite", "postgres")

_STEPS = (
    Contender("stepwell.async", f"{_PLAYERS}.stepwell_steps", "AsyncSteps", _ALL),
    Contender("stepwell.async_plain", f"{_PLAYERS}.stepwell_steps", "AsyncSteps", _ALL, {"is_plain": True}),
    Contender("stepwell.blocking", f"{_PLAYERS}.stepwell_steps", "BlockingSteps", _ALL),
    Contender("stepwell.blocking_plain", f"{_PLAYERS}.stepwell_steps", "BlockingSteps", _ALL, {"is_plain": True}),
    Contender("floor", f"{_PLAYERS}.floor_steps", "FloorSteps", _ALL),
    Contender("dbos.async", f"{_PLAYERS}.dbos_steps", "AsyncSteps", ("sqlite", "postgres")),
    Contender("dbos.blocking", f"{_PLAYERS}.dbos_steps", "BlockingSteps", ("sqlite", "postgres")),
    Contender("dbos_wal.blocking", f"{_PLAYERS}.dbos_steps", "BlockingSteps", ("sqlite",), {"is_wal": True}),
    Contender("langgraph.tasks", f"{_PLAYERS}.langgraph_steps", "TaskSteps", _ALL),
    Contender("langgraph.graph", f"{_PLAYERS}.langgraph_steps", "GraphSteps", _ALL),
)
_QUEUE = (
    Contender("stepwell.async", f"{_PLAYERS}.stepwell_queue", "AsyncQueue", ("sqlite", "postgres", "redis")),
    Contender("stepwell.blocking", f"{_PLAYERS}.stepwell_queue", "BlockingQueue", ("sqlite", "postgres", "redis")),
    Contender("floor", f"{_PLAYERS}.floor_queue", "FloorQueue", ("sqlite", "postgres")),
    Contender("dbos", f"{_PLAYERS}.dbos_queue", "DbosQueue", ("sqlite", "postgres")),
    Contender("procrastinate", f"{_PLAYERS}.procrastinate_queue", "ProcrastinateQueue", ("postgres",)),
    Contender("pgqueuer", f"{_PLAYERS}.pgqueuer_queue", "PgqueuerQueue", ("postgres",)),
    Contender("pgqueuer_100", f"{_PLAYERS}.pgqueuer_queue", "PgqueuerQueue", ("postgres",), {"batch": 100}),
    Contender("huey.one_thread", f"{_PLAYERS}.huey_queue", "HueyQueue", ("sqlite", "redis"), {"workers": 1}),
    Contender("huey.four_threads", f"{_PLAYERS}.huey_queue", "HueyQueue", ("sqlite", "redis"), {"workers": 4}),
)
_BY_SUBJECT = {"steps": _STEPS, "queue": _QUEUE}


def contenders_of(subject: str, store: str) -> list[Contender]:
    """Return the contenders that work on this store."""
    return [contender for contender in _BY_SUBJECT[subject] if store in contender.stores]


CONTESTS = (
    *(Contest("steps", "alone", store, "steps/s", 20, 2) for store in _ALL),
    *(Contest("steps", "together", store, "steps/s", 200, 20) for store in _ALL),
    *(Contest("queue", "enqueue", store, "items/s", 200, 10) for store in ("sqlite", "postgres", "redis")),
    *(Contest("queue", "bulk", store, "items/s", 5_000, 100) for store in ("sqlite", "postgres", "redis")),
    *(Contest("queue", "drain", store, "items/s", 5_000, 200, rounds=3) for store in ("sqlite", "postgres", "redis")),
    *(Contest("queue", "latency", store, "ms", 20, 2) for store in ("sqlite", "postgres", "redis")),
)
"""In the order in which they are held."""


def chosen(names: list[str]) -> list[Contest]:
    """Return the contests of these names: ``steps``, ``steps.alone``, ``steps.alone.sqlite``, or a store; without names all of
    them.
    """
    unknown = [name for name in names if not any(_stands_for(name, contest) for contest in CONTESTS)]
    if unknown:
        raise ValueError(f"no contest is called {', '.join(unknown)}; there are {', '.join(c.name for c in CONTESTS)}")
    return [contest for contest in CONTESTS if not names or any(_stands_for(name, contest) for name in names)]


def _stands_for(name: str, contest: Contest) -> bool:
    return name in (contest.store, contest.name) or contest.name.startswith(f"{name}.")

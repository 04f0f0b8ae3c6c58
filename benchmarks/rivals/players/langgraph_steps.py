"""LangGraph with a checkpoint saver, async: as an entrypoint that calls tasks, and as a graph of nodes.

Checkpoints are written while the next step runs (``durability="async"``: its default, and the faster of the two modes that keep
every step). On PostgreSQL the saver has a pool, with the connection settings of its documentation.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from itertools import count
from typing import Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from benchmarks.rivals.contest import STEPS_EACH
from benchmarks.rivals.player import Place
from benchmarks.rivals.players.pace import step_rate

__all__ = ["GraphSteps", "TaskSteps"]


@task
async def add(number: int) -> int:
    """Return the sum; a trivial step."""
    return number + 1


async def counting(number: int) -> int:
    """Run ten steps, one after another."""
    for _ in range(STEPS_EACH):
        number = await add(number)
    return number


class Count(TypedDict):
    """The state of the graph."""

    number: int


async def node(state: Count) -> Count:
    """Increment the count; a trivial node."""
    return {"number": state["number"] + 1}


def counting_graph() -> StateGraph[Count]:
    """Return a graph of ten nodes, one after another."""
    graph, before = StateGraph(Count), START
    for number in range(STEPS_EACH):
        graph.add_node(f"add_{number}", node)
        graph.add_edge(before, f"add_{number}")
        before = f"add_{number}"
    graph.add_edge(before, END)
    return graph


async def _saver(place: Place, stack: AsyncExitStack) -> Any:
    if place.store == "memory":
        return InMemorySaver()
    if place.store == "sqlite":
        saver: Any = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(str(place.file)))
    else:
        settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        pool: Any = AsyncConnectionPool(place.url, min_size=4, max_size=20, open=False, kwargs=settings)
        await stack.enter_async_context(pool)
        saver = AsyncPostgresSaver(pool)
    await saver.setup()
    return saver


class _Steps:
    def __init__(self, place: Place) -> None:
        self._runner, self._stack, self._threads = asyncio.Runner(), AsyncExitStack(), count()
        self._compiled: Any = self._compile(self._runner.run(_saver(place, self._stack)))
        self.works = {"alone": self.alone, "together": self.together}

    def _compile(self, saver: Any) -> Any:
        raise NotImplementedError

    async def _one(self) -> int:
        raise NotImplementedError

    def _config(self) -> dict[str, Any]:
        return {"configurable": {"thread_id": f"thread-{next(self._threads)}"}}

    def alone(self, size: int) -> list[float]:
        """Run workflows one after another."""

        async def each() -> list[int]:
            return [await self._one() for _ in range(size)]

        return step_rate(size, lambda: self._runner.run(each()))

    def together(self, size: int) -> list[float]:
        """Run workflows concurrently."""

        async def all_of_them() -> list[int]:
            return await asyncio.gather(*(self._one() for _ in range(size)))

        return step_rate(size, lambda: self._runner.run(all_of_them()))

    def close(self) -> None:
        """Close the saver."""
        self._runner.run(self._stack.aclose())
        self._runner.close()


class TaskSteps(_Steps):
    """The functional API: an entrypoint that calls tasks."""

    def _compile(self, saver: Any) -> Any:
        return entrypoint(checkpointer=saver)(counting)

    async def _one(self) -> int:
        return await self._compiled.ainvoke(0, self._config(), durability="async")


class GraphSteps(_Steps):
    """The graph API: a node for each step."""

    def _compile(self, saver: Any) -> Any:
        return counting_graph().compile(checkpointer=saver)

    async def _one(self) -> int:
        return (await self._compiled.ainvoke({"number": 0}, self._config(), durability="async"))["number"]

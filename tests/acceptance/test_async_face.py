"""The awaited face as it is written: ``async with``, many coroutines at once, cancellation."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from stepwell import AsyncStepwell, Conflict, NotFound, Stepwell, workflow


def test_the_awaited_face_reads_like_the_blocking_one(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncStepwell(url) as well:
            receipt = await well.create("order-7", workspace="acme", context={"n": 1})
            assert receipt.revision == 0
            async with well.transaction("order-7") as tx:
                tx.update_context(lambda context: {"n": context["n"] + 1})
                tx.state(well.state.workspace("acme")).set("seen", True)
            assert tx.receipt.revision == 1
            assert (await well.load("order-7")).context == {"n": 2}
            assert (await well.verify("order-7")).ok
            assert await well.state.workspace("acme").get("seen") is True
            assert [summary.execution_id for summary in await well.executions.list(workspace="acme")] == ["order-7"]
            assert await well.archive("order-7", tmp_path / "proof") == 2
            with pytest.raises(NotFound):
                async with well.transaction("missing"):
                    pass

    asyncio.run(main())


def test_many_coroutines_commit_at_once(url: str) -> None:
    async def work(well: AsyncStepwell, number: int) -> int:
        await well.create(f"run-{number}")
        for turn in range(3):
            async with well.transaction(f"run-{number}") as tx:
                tx.set_variable("turn", turn)
                tx.state(well.state.globals).increment("commits")
        return (await well.load(f"run-{number}")).revision

    async def main() -> None:
        async with AsyncStepwell(url) as well:
            assert await asyncio.gather(*(work(well, number) for number in range(100))) == [3] * 100
            assert await well.state.globals.get("commits") == 300
            assert all([(await well.verify(f"run-{number}")).ok for number in range(0, 100, 10)])

    asyncio.run(main())


def test_coroutines_that_race_for_one_execution(url: str) -> None:
    """T05."""

    async def write(well: AsyncStepwell, number: int) -> str:
        try:
            async with well.transaction("run") as tx:
                tx.set_variable("by", number)
                await asyncio.sleep(0)
        except Conflict:
            return "lost"
        return "won"

    async def main() -> None:
        async with AsyncStepwell(url) as well:
            await well.create("run")
            before = 0
            for _ in range(5):
                outcomes = await asyncio.gather(*(write(well, number) for number in range(10)))
                revision = (await well.load("run")).revision
                assert outcomes.count("won") == revision - before > 0
                before = revision
            assert (await well.verify("run")).ok

    asyncio.run(main())


def test_cancelled_commit_is_there_or_not_and_the_well_goes_on(url: str) -> None:
    """T08, I1."""

    async def commit(well: AsyncStepwell, number: int) -> None:
        async with well.transaction("run", commit_id=f"c{number}") as tx:
            tx.set_variable("n", number)

    async def main() -> None:
        async with AsyncStepwell(url) as well:
            await well.create("run")
            for number in range(30):
                task = asyncio.create_task(commit(well, number))
                for _ in range(number % 6):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                landed, state = await well.receipt("run", f"c{number}"), await well.load("run")
                if landed is not None:
                    assert state.variables == {"n": number}
            with suppress(Conflict):  # the last cancelled one may be landing at this moment
                await commit(well, 98)
            await commit(well, 99)
            assert (await well.load("run")).variables == {"n": 99}
            assert (await well.verify("run")).ok

    asyncio.run(main())


def test_one_well_may_be_used_by_one_loop_after_another(file_url: str) -> None:
    well = AsyncStepwell(file_url)
    asyncio.run(well.create("run"))
    assert asyncio.run(well.load("run")).revision == 0
    asyncio.run(well.close())


@workflow
async def idle() -> None:
    """Do nothing: a registered workflow, so that the well has a worker."""


def test_a_well_that_is_closed_before_its_worker_began_ends() -> None:
    async def main() -> None:
        async with AsyncStepwell("memory://"):
            pass

    asyncio.run(asyncio.wait_for(main(), 5))


def test_both_faces_share_a_file(file_url: str) -> None:
    async def main(blocking: Stepwell) -> None:
        async with AsyncStepwell(file_url) as well:
            await asyncio.to_thread(blocking.create, "run")
            async with well.transaction("run") as tx:
                tx.set_variable("a", 1)
            assert (await asyncio.to_thread(blocking.load, "run")).variables == {"a": 1}

    with Stepwell(file_url) as blocking:
        asyncio.run(main(blocking))

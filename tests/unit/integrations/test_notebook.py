"""Inside a running event loop, as in the cells of a notebook, both faces work."""

from __future__ import annotations

import asyncio

from stepwell import AsyncStepwell, Stepwell, step, workflow


@step
def double(number: int) -> int:
    return 2 * number


@workflow
def doubled(number: int) -> int:
    return double(number)


def test_both_faces_run_workflows_where_a_loop_runs(tmp_path):
    url = f"sqlite:///{tmp_path}/notebook.db"

    async def cells() -> list[int]:
        with Stepwell(url) as well:
            first = well.start(doubled, 2).result(10)
        async with AsyncStepwell(url) as well:
            second = await (await well.start(doubled, 3)).result(10)
        return [first, second]

    assert asyncio.run(cells()) == [4, 6]


def test_a_cell_that_is_run_again_replaces_its_workflow():
    namespace: dict[str, object] = {"__name__": "__main__"}
    cell = "from stepwell import workflow\n@workflow\ndef of_a_cell() -> int:\n    return {}\n"
    with Stepwell("memory://") as well:
        for number in (1, 2):
            exec(cell.format(number), namespace)
            assert well.start(namespace["of_a_cell"]).result(10) == number

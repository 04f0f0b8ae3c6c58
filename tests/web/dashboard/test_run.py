"""The page of a run: what it says in each status, and its actions."""

from __future__ import annotations

import asyncio
import html
import json
import re
import shlex
from contextlib import suppress
from datetime import datetime
from typing import Any
from urllib.parse import quote

import pytest
from tests.web.dashboard.browsing import Person, browsing, text_of
from tests.web.servers import approve, async_test, greet

from stepwell import Retry, StepwellError, current, sleep, step, workflow
from stepwell.flow import call, define, signal
from stepwell.web.dashboard.page_events import changes
from stepwell.web.events import Event


@step
async def ship(order: str) -> str:
    """Return what was shipped."""
    return f"shipped {order}"


@step
async def refuse(order: str) -> None:
    """Fail with what a person typed."""
    raise ValueError(f"no such order {order}")


@workflow
async def many(count: int = 250) -> int:
    """Ship many orders at once."""
    await asyncio.gather(*(ship(f"o-{number}") for number in range(count)))
    return count


@workflow
async def refused(order: str = "7") -> None:
    """Ship, then fail."""
    await ship(order)
    await refuse(order)


async def ended(person: Person, started: Any) -> str:
    with suppress(StepwellError):  # how it ended is on the page
        await started.result(timeout=20)
    return started.execution_id


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not await condition():  # noqa: ASYNC110 - a commit of the worker tells of itself by nothing else
            await asyncio.sleep(0.02)


@async_test
async def test_a_completed_run_shows_its_steps_in_time_and_its_output():
    async with browsing() as person:
        await ended(person, await person.well.start(many, 3, workspace="acme", execution_id="m"))
        page = await person.open("/runs/m")
        assert page.status_code == 200
        words = text_of(page)
        for part in ("Completed", "many v1", "ship", "ship#2", "revision"):
            assert part in words
        assert '<svg class="waterfall"' in page.text
        assert "sse:connect" not in page.text
        assert "3" in text_of(await person.open("/runs/m?tab=io"))
        for tab in ("graph", "steps", "events", "raw", "nonsense"):
            assert (await person.open(f"/runs/m?tab={tab}")).status_code == 200


@async_test
async def test_a_waiting_run_says_on_what_and_takes_the_signal():
    async with browsing() as person:
        run = await person.well.start(approve, workspace="acme", execution_id="a")
        await until(lambda: is_waiting(person, "a"))
        page = await person.open("/runs/a")
        assert "Waiting on signal" in text_of(page)
        assert "Since" in text_of(page)
        assert 'hx-sse:connect="/live?run=a&amp;after=' in page.text
        bad = await person.send("/runs/a/signal", name="approve", value="{no json")
        assert bad.status_code == 422
        sent = await person.send("/runs/a/signal", name="approve", value='{"ok": 1}')
        assert (sent.status_code, sent.headers["location"]) == (303, "/runs/a?done=signalled")
        assert await run.result(timeout=20) == {"ok": 1}
        assert "The signal was sent" in text_of(await person.open("/runs/a?done=signalled"))


async def is_waiting(person: Person, execution_id: str) -> bool:
    return bool((await person.well.run(execution_id).progress()).offers)


@async_test
async def test_a_failed_run_shows_why_and_can_be_retried_with_a_reason():
    async with browsing() as person:
        await ended(person, await person.well.start(refused, "<b>7</b>", workspace="acme", execution_id="f"))
        page = await person.open("/runs/f?step=refuse")
        assert "<b>7</b>" not in page.text
        assert "&lt;b&gt;7&lt;/b&gt;" in page.text
        words = text_of(page)
        for part in ("StepFailed", "ValueError", "Traceback", "Retry the failed step"):
            assert part in words
        assert (await person.send("/runs/f/retry", reason="fixed the order")).status_code == 303
        [entry] = [each for each in await person.well.requests.audit("acme") if each.action == "retry_run"]
        assert (entry.actor, entry.reason, entry.resource) == ("acme", "fixed the order", "/api/v1/runs/f/retry")


@async_test
async def test_a_viewer_sees_the_actions_and_cannot_carry_them_out():
    async with browsing("viewer") as person:
        await person.well.start(approve, workspace="acme", execution_id="a")
        await until(lambda: is_waiting(person, "a"))
        page = await person.open("/runs/a")
        assert 'disabled title="This needs the role operator"' in page.text
        refusal = await person.send("/runs/a/cancel")
        assert refusal.status_code == 403
        assert "needs the role operator" in text_of(refusal)
        assert not (await person.well.run("a").progress()).status.endswith("CANCELLED")


@async_test
async def test_a_run_of_another_workspace_and_a_missing_one_look_the_same():
    async with browsing("rival") as person:
        await ended(person, await person.well.start(greet, workspace="acme", execution_id="of-acme"))
        theirs, missing = await person.open("/runs/of-acme"), await person.open("/runs/of-nobody")
        assert theirs.status_code == missing.status_code == 404
        mask = text_of(theirs).replace("of-acme", "*").partition("request")[0]
        assert mask == text_of(missing).replace("of-nobody", "*").partition("request")[0]


@async_test
async def test_many_steps_are_grouped_and_a_group_opens():
    async with browsing() as person:
        await ended(person, await person.well.start(many, workspace="acme", execution_id="w"))
        page = await person.open("/runs/w")
        assert "ship ×250" in text_of(page)  # noqa: RUF001
        opened = text_of(await person.open("/runs/w?group=ship"))
        assert "rows 1 to 200 of 250" in opened
        assert "rows 201 to 250 of 250" in text_of(await person.open("/runs/w?group=ship&row=200"))
        assert "0 of 250 steps match" in text_of(await person.open("/runs/w?name=nothing"))


@async_test
async def test_a_run_is_started_again_with_another_input_and_deleted_by_its_id():
    async with browsing() as person:
        await ended(person, await person.well.start(greet, "Ada", workspace="acme", execution_id="g"))
        form = await person.open("/runs/g/rerun")
        assert "&#34;Ada&#34;" in form.text
        again = await person.send("/runs/g/rerun", input='"Grace"', execution_id="g2")
        assert again.headers["location"] == "/runs/g2?done=started"
        assert await person.well.run("g2").result(timeout=20) == "Hello, Grace!"
        assert (await person.send("/runs/g/delete", confirm="wrong")).status_code == 422
        assert (await person.send("/runs/g/delete", confirm="g")).status_code == 303
        assert (await person.open("/runs/g")).status_code == 404


@async_test
async def test_an_open_page_is_told_of_a_change_and_of_the_end():
    async with browsing() as person:
        run = await person.well.start(approve, workspace="acme", execution_id="a")
        await until(lambda: is_waiting(person, "a"))
        revision = (await person.well.executions.get("a")).revision
        await run.signal("approve", True)
        stream = await person.open(f"/live?run=a&after={revision}", headers={"Accept": "text/event-stream"})
        events = [line.removeprefix("event: ") for line in stream.text.splitlines() if line.startswith("event: ")]
        assert events[-1] == "end"
        assert events.count("changed") >= 1


@async_test
async def test_what_happens_at_once_is_one_change_and_an_error_ends_the_stream():
    async def burst() -> Any:
        yield Event(event="snapshot", id=0)
        for number in range(1, 50):
            yield Event(event="commit", id=number)
        yield Event(event="end", id=49)

    told = [(each.event, each.id) async for each in changes(burst())]
    assert told[-2:] == [("changed", 49), ("end", 49)]
    assert len(told) <= 4

    async def broken() -> Any:
        yield Event(event="commit", id=1)
        raise StepwellError("the store is away")

    with pytest.raises(StepwellError):
        _ = [each async for each in changes(broken())]


@step
async def count(number: int) -> int:
    """Return a number."""
    return number


@workflow
async def counts() -> int:
    """Count twice, and note the number before, which lands with the step."""
    current().variables["counted"] = 1
    await count(1)
    current().variables["counted"] = 2
    return await count(2)


@workflow
async def rests() -> None:
    """Count, rest and count: as long as an overview needs."""
    await count(1)
    await sleep(0.05)
    await count(2)


@async_test
async def test_the_inspector_shows_the_receipt_of_a_step_and_what_it_wrote():
    async with browsing() as person:
        await ended(person, await person.well.start(counts, workspace="acme", execution_id="c"))
        first, second = await person.well.run("c").steps()
        words = text_of(await person.open("/runs/c?step=count%232"))
        assert f"Receipt {second.revision}" in words
        assert "State written counted 1 2" in words
        assert first.revision is not None
        assert "State written counted 1" in text_of(await person.open("/runs/c?step=count"))


@async_test
async def test_a_part_of_the_time_is_shown_alone():
    async with browsing() as person:
        await ended(person, await person.well.start(rests, workspace="acme", execution_id="m"))
        page = await person.open("/runs/m")
        parts = re.findall(r'<a href="(/runs/m\?from=\d+&amp;to=\d+)"', page.text)
        assert len(parts) == 24
        part = await person.open(parts[-1].replace("&amp;", "&"))
        assert "All of the time" in text_of(part)
        assert "All of the time" not in text_of(await person.open("/runs/m?from=9&to=3"))
        assert (await person.open("/runs/m?from=x&to=y")).status_code == 200


gates: dict[str, asyncio.Event] = {}


@step
async def reserve() -> None:
    """Reserve, at once."""


@step
async def release() -> None:
    """Release when the test says so."""
    await gates["release"].wait()


@async_test
async def test_a_cancel_is_stamped_when_asked_taken_and_done_beside_the_worker_that_has_the_run():
    gates["release"] = asyncio.Event()
    async with browsing() as person:
        flow = define("reserving", call("reserve", compensate="release"), signal("go"))
        await person.well.start(flow, workspace="acme", execution_id="r")
        await until(lambda: is_waiting(person, "r"))
        assert "Cancel requested" not in text_of(await person.open("/runs/r"))
        assert (await person.send("/runs/r/cancel")).status_code == 303

        async def is_acknowledged() -> bool:
            asked = (await person.well.run("r").progress()).cancellation
            assert asked is not None
            return asked.acknowledged_at is not None

        await until(is_acknowledged)
        words = text_of(await person.open("/runs/r"))
        assert re.search(r"Cancel requested 20\S+ \S+ acknowledged 20\S+ \S+ compensating", words)
        assert re.search(r"with \S+ , lease ends in \d+ s", words)
        gates["release"].set()
        await ended(person, person.well.run("r"))
        page = await person.open("/runs/r")
        assert re.search(r"acknowledged 20\S+ \S+ done 20", text_of(page))
        assert "lease ends" not in text_of(page)
        asked = (await person.open("/api/v1/runs/r/progress")).json()["cancellation"]
        stamps = [datetime.fromisoformat(asked[name]) for name in ("requested_at", "acknowledged_at", "ended_at")]
        assert stamps == sorted(stamps)


@async_test
async def test_receipts_are_verified_when_somebody_asks_and_not_on_each_look():
    async with browsing() as person:
        run = await person.well.start(approve, workspace="acme", execution_id="a")
        await until(lambda: is_waiting(person, "a"))
        page = await person.open("/runs/a")
        assert "receipts not verified" in text_of(page)
        asked = re.search(r'href="(/runs/a\?verified=\d+)"', page.text)
        assert asked is not None
        assert "receipts verified" in text_of(await person.open(asked[1]))
        await run.signal("approve", True)
        await ended(person, run)
        assert "receipts not verified" in text_of(await person.open(asked[1]))


@step(retry=Retry(attempts=2, first_seconds=0.001))
async def chatters(lines: int, word: str) -> None:
    """Log lines, and fail once."""
    log = current().logger
    for number in range(lines):
        log.info("%s %d", word, number)
    if current().attempt == 1:
        log.warning("it goes wrong")
        raise ConnectionError("away")


@workflow
async def chats(word: str) -> None:
    """Call it once with little and once with much."""
    await chatters(1, word)
    await chatters(60, "much")


@step(retry=Retry(attempts=12, first_seconds=0))
async def grumbles() -> None:
    """Fail often, with one line each time."""
    current().logger.info("grumble %d", current().attempt)
    if current().attempt < 12:
        raise ConnectionError("away")


@workflow
async def insists() -> None:
    """Try for long."""
    await grumbles()


@async_test
async def test_the_tab_logs_says_which_retried_attempts_kept_no_lines():
    async with browsing() as person:
        await ended(person, await person.well.start(insists, workspace="acme", execution_id="i"))
        words = text_of(await person.open("/runs/i?tab=logs"))
        assert "11 1 line was dropped" in words
        assert [number for number in (10, 11, 12) if f"grumble {number}" in words] == [10, 12]


@async_test
async def test_the_inspector_shows_the_input_and_the_tab_logs_what_steps_have_logged():
    async with browsing() as person:
        await ended(person, await person.well.start(chats, "<b>hi</b>", workspace="acme", execution_id="c"))
        page = await person.open("/runs/c?step=chatters")
        assert "Input { 2 } lines 1 word &#34;&lt;b&gt;hi&lt;/b&gt;&#34; Output" in text_of(page)
        assert "Logs of this step" in text_of(page)
        page = await person.open("/runs/c?tab=logs")
        assert "<b>hi" not in page.text
        words = text_of(page)
        assert words.index("&lt;b&gt;hi&lt;/b&gt; 0") < words.index("it goes wrong") < words.index("much 59")
        assert "11 older lines were dropped" in words
        of_one = text_of(await person.open("/runs/c?tab=logs&step=chatters&level=WARNING"))
        assert "it goes wrong" in of_one
        assert "INFO chatters" not in of_one
        assert "No line matches" in text_of(await person.open("/runs/c?tab=logs&step=nothing"))
        await ended(person, await person.well.start(greet, "Ada", workspace="acme", execution_id="g"))
        assert "No step of this run has kept a log" in text_of(await person.open("/runs/g?tab=logs"))


@async_test
async def test_a_run_is_paused_with_a_reason_and_resumed():
    async with browsing() as person:
        run = await person.well.start(approve, workspace="acme", execution_id="a")
        await until(lambda: is_waiting(person, "a"))
        assert "Pause the run" in text_of(await person.open("/runs/a"))
        paused = await person.send("/runs/a/pause", reason="<b>the bank</b> is down")
        assert paused.headers["location"] == "/runs/a?done=run_paused"
        page = await person.open("/runs/a")
        assert "<b>the bank" not in page.text
        words = text_of(page)
        assert re.search(r"Paused since 20\S+ \S+ by acme : &lt;b&gt;the bank&lt;/b&gt; is down", words)
        assert "Waiting on paused" in words
        assert "Pause the run" not in words
        assert (await person.send("/runs/a/resume", reason="it is back")).status_code == 303
        assert "Paused since" not in text_of(await person.open("/runs/a"))
        assert (await person.send("/runs/a/resume")).status_code == 409
        await run.signal("approve", 1)
        assert await run.result(timeout=20) == 1
        assert "Pause the run" not in text_of(await person.open("/runs/a"))
        asked = {(each.action, each.reason) for each in await person.well.requests.audit("acme")}
        assert {("pause_run", "<b>the bank</b> is down"), ("resume_run", "it is back")} <= asked


@async_test
async def test_commands_to_copy_have_what_others_chose_as_one_word():
    async with browsing() as person:
        chosen, value = "it's; $(id)", "o'clock `id`"
        await ended(person, await person.well.start(refused, value, workspace="acme", execution_id=chosen))
        for path, word in (("fork", chosen), ("rerun", json.dumps(value))):
            page = await person.open(f"/runs/{quote(chosen, safe='')}/{path}")
            commands = [html.unescape(each) for each in re.findall(r"<pre><code>(.*?)</code></pre>", page.text, re.DOTALL)]
            assert commands
            assert any(word in shlex.split(each) for each in commands if each.startswith("stepwell"))
            bodies = [words[words.index("-d") + 1] for words in map(shlex.split, commands) if "-d" in words]
            assert bodies
            assert all(json.loads(each) for each in bodies)

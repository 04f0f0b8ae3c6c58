"""The state of a run at its receipts, and forks from there."""

from __future__ import annotations

import html
import re

from tests.web.dashboard.browsing import Person, browsing, text_of
from tests.web.dashboard.test_run import ended, refused
from tests.web.servers import async_test


async def by_hand(person: Person) -> None:
    """Make a run with two variables, the second one of which is dangerous as markup and large as a number."""
    await person.well.create("r", "acme")
    async with person.well.transaction("r") as tx:
        tx.set_variable("first", 1)
    async with person.well.transaction("r") as tx:
        tx.set_variable("first", 2**62 + 1)
        tx.set_variable("second", "<img src=x>")


@async_test
async def test_each_revision_shows_its_state_and_what_changed():
    async with browsing() as person:
        await by_hand(person)
        newest = await person.open("/runs/r/state")
        words = text_of(newest)
        assert "Changes from 1 to 2" in words
        assert str(2**62 + 1) in words
        assert "<img" not in newest.text
        before = text_of(await person.open("/runs/r/state?at=1"))
        assert "Changes from 0 to 1" in before
        assert "second" not in before
        assert "Changes from 0 to 2" in text_of(await person.open("/runs/r/state?at=2&against=0"))
        assert (await person.open("/runs/r/state?at=9")).status_code == 404
        assert (await person.open("/runs/r/state?at=one")).status_code == 400


@async_test
async def test_a_large_value_is_shown_by_its_size_until_somebody_loads_it():
    async with browsing() as person:
        await person.well.create("r", "acme")
        async with person.well.transaction("r") as tx:
            tx.set_variable("big & long", ["needle"] * 3_000)
            tx.set_variable("small", 7)
        page = await person.open("/runs/r/state?at=1")
        value = text_of(page).partition("State Pending")[2]
        assert "big & long 26.4 KiB Load" in html.unescape(value)
        assert "needle" not in value
        [link] = re.findall(r'href="([^"]+)#value"', page.text)
        assert "needle" in text_of(await person.open(html.unescape(link))).partition("State Pending")[2]


@async_test
async def test_the_chain_is_verified_on_the_page_and_the_files_are_the_api_s():
    async with browsing() as person:
        await by_hand(person)
        page = await person.open("/runs/r/state?verify=1")
        assert "Every receipt of this run is sound" in text_of(page)
        assert (await person.open("/api/v1/runs/r/state?at=1")).json()["variables"] == {"first": 1}
        assert (await person.open("/api/v1/runs/r/proof")).status_code == 200


@async_test
async def test_a_fork_is_made_before_a_step_and_leads_back_to_its_origin():
    async with browsing() as person:
        await ended(person, await person.well.start(refused, workspace="acme", execution_id="f"))
        page = await person.open("/runs/f/fork?step=refuse")
        words = text_of(page)
        assert "Kept: 1" in words
        assert "Runs again: 1" in words
        assert "Effects that may repeat: 1" in words
        [at] = [each.partition('"')[0] for each in page.text.split('name="at" value="')[1:]]
        made = await person.send("/runs/f/fork", at=at, new_id="f2", reason="try it")
        assert made.headers["location"] == "/runs/f2?done=forked"
        assert f"fork of f at {at}" in text_of(await person.open("/runs/f2"))
        assert f"Forks of this run f2 from revision {at} Looked" in text_of(await person.open("/runs/f/fork"))
        assert "Forks of this run None" in text_of(await person.open("/runs/f2/fork"))
        assert (await person.send("/runs/f/fork", at=at, new_id="f2")).status_code == 409
        assert (await person.send("/runs/f/fork", at="x")).status_code == 422
        assert "No commit speaks of the step nothing" in text_of(await person.open("/runs/f/fork?step=nothing"))


@async_test
async def test_a_fork_begins_with_the_input_and_the_variables_of_the_form():
    async with browsing() as person:
        await ended(person, await person.well.start(refused, "<i>7</i>", workspace="acme", execution_id="f"))
        page = await person.open("/runs/f/fork")
        assert "&lt;i&gt;7&lt;/i&gt;" in page.text
        fields = {"at": "0", "new_id": "f2", "input": '"8"', "variables": '{"note": "<b>by hand</b>"}'}
        assert (await person.send("/runs/f/fork", **fields)).status_code == 303
        state = await person.well.load("f2")
        assert (state.trigger, state.variables) == ("8", {"note": "<b>by hand</b>"})
        first, *_ = await person.well.receipts("f2", limit=1)
        assert [each["type"] for each in first.mutations] == ["restore", "set_variable", "set_trigger"]
        assert (await person.send("/runs/f/fork", at="0", new_id="f3", input='"<i>7</i>"', variables="{}")).status_code == 303
        [first] = await person.well.receipts("f3", limit=1)
        assert [each["type"] for each in first.mutations] == ["restore"]  # nothing was edited
        for wrong in ({"input": "[1]"}, {"variables": "[1]"}, {"input": "{no json"}, {"variables": '{"$spent": 1}'}):
            refusal = await person.send("/runs/f/fork", at="0", **wrong)
            assert refusal.status_code == 422, wrong
        assert "in braces" in text_of(await person.send("/runs/f/fork", at="0", variables="[1]"))


@async_test
async def test_a_run_with_large_values_is_forked_without_them_in_the_form():
    async with browsing() as person:
        await person.well.create("r", "acme")
        async with person.well.transaction("r") as tx:
            tx.set_variable("big", "needle\n" * 30_000)
        page = await person.open("/runs/r/fork")
        assert "needle" not in page.text
        assert "The variables are too large to be edited here" in text_of(page)
        assert 'name="input"' in page.text
        assert (await person.send("/runs/r/fork", at="1", new_id="r2", input="null")).status_code == 303
        assert (await person.well.load("r2")).variables == (await person.well.load("r")).variables

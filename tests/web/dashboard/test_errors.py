"""The pages of failed runs in groups."""

from __future__ import annotations

from tests.web.dashboard.browsing import Person, browsing, text_of
from tests.web.dashboard.test_run import ended, refused
from tests.web.servers import async_test


async def grouped(person: Person) -> str:
    """Let two runs fail in one way, and return the fingerprint."""
    for number, name in enumerate(("one", "two")):
        await ended(person, await person.well.start(refused, f"<i>{number}", workspace="acme", execution_id=name))
    [group] = await person.well.errors.within("acme").list()
    return group.fingerprint


@async_test
async def test_failures_of_one_kind_are_one_row():
    async with browsing() as person:
        assert "Nothing has failed" in text_of(await person.open("/errors"))
        fingerprint = await grouped(person)
        page = await person.open("/errors")
        words = text_of(page)
        assert "ValueError" in words
        assert "step refuse in test_run.py:refuse" in words
        assert "newest 1,000 failed runs" in words
        assert page.text.count(f'id="group-{fingerprint}"') == 1
        assert "<i>" not in page.text
        assert "No group is ignored" in text_of(await person.open("/errors?status=ignored"))
        assert (await person.open("/errors?failures=many")).status_code == 422


@async_test
async def test_a_group_is_resolved_ignored_and_opened_with_a_reason():
    async with browsing() as person:
        fingerprint = await grouped(person)
        page = await person.open(f"/errors/{fingerprint}")
        assert "one" in text_of(page)
        assert (await person.send(f"/errors/{fingerprint}/resolve", reason="fixed")).status_code == 303
        assert "Resolved by acme: fixed" in text_of(await person.open(f"/errors/{fingerprint}"))
        assert (await person.send(f"/errors/{fingerprint}/reopen")).status_code == 303
        sent = await person.send(f"/errors/{fingerprint}/ignore", more="3", until="2126-01-02T03:04", reason="known")
        assert sent.status_code == 303
        words = text_of(await person.open(f"/errors/{fingerprint}"))
        assert "until 2126-01-02 03:04:00" in words
        assert "until more than 3 further failures" in words
        assert (await person.send(f"/errors/{fingerprint}/ignore", more="three")).status_code == 422
        assert (await person.send(f"/errors/{fingerprint}/ignore", until="soon")).status_code == 422
        assert (await person.open("/errors/0000000000000000")).status_code == 404


@async_test
async def test_all_runs_of_a_group_are_retried_at_once():
    async with browsing() as person:
        fingerprint = await grouped(person)
        done = await person.send(f"/errors/{fingerprint}/retry", reason="again")
        assert "2 of 2 runs continue" in text_of(done)
        assert [each.reason for each in await person.well.requests.audit("acme") if each.action == "retry_error_group"] == ["again"]


@async_test
async def test_a_viewer_decides_nothing_and_another_workspace_sees_nothing():
    async with browsing("viewer") as person:
        fingerprint = await grouped(person)
        assert (await person.send(f"/errors/{fingerprint}/resolve")).status_code == 403
        async with person.api.client("rival") as rival:
            assert (await rival.get(f"/errors/{fingerprint}")).status_code == 404
            assert fingerprint not in (await rival.get("/errors")).text

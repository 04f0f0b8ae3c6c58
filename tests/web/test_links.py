"""Approvals: what waits for people, and links with which a person without an account answers."""

from __future__ import annotations

import asyncio

from tests.web.servers import approve, async_test, fail, greet, served

from stepwell import AsyncStepwell, FakeClock, wait_approval, workflow

__all__ = ["approve", "fail", "greet"]

V1 = "/api/v1"


@async_test
async def test_the_list_has_each_answer_that_a_waiting_run_accepts():
    async with served() as api, api.client("operator") as client, api.client("rival") as rival:
        await client.put(f"{V1}/runs/r", json={"workflow": "approve"})
        while await api.well.run("r").status() != "WAITING":  # noqa: ASYNC110 - its worker has it there soon
            await asyncio.sleep(0.01)
        found = (await client.get(f"{V1}/approvals")).json()["items"]
        assert [(each["execution_id"], each["name"], each["kind"]) for each in found] == [("r", "approve", "signal")]
        assert (await rival.get(f"{V1}/approvals")).json()["items"] == []
        made = await client.post(f"{V1}/runs/r/links", json={"signal": "approve", "by": "ann"})
        assert made.status_code == 201
        secret = made.json()["url"].rpartition("/links/")[2]
        link = await api.well.access.link(secret)
        assert link is not None
        assert (link.execution_id, link.workspace, link.signal, link.by, link.created_by) == (
            "r",
            "acme",
            "approve",
            "ann",
            "operator",
        )
        other = await client.post(f"{V1}/runs/r/links", json={"signal": "other"})
        assert (other.status_code, other.json()["code"]) == (404, "SW-200")
        foreign = await rival.post(f"{V1}/runs/r/links", json={"signal": "approve"})
        assert foreign.status_code == 404


@workflow
async def release() -> bool:
    """Wait for the approval of ann."""
    return (await wait_approval("Release?", approvers=["ann"])).is_approved


@async_test
async def test_an_approval_is_decided_by_an_approver_at_an_address_of_its_own():
    async with served() as api, api.client("operator") as client, api.client("rival") as rival:
        for name, workflow_name in (("r", "release"), ("s", "approve")):
            await client.put(f"{V1}/runs/{name}", json={"workflow": workflow_name})
            while await api.well.run(name).status() != "WAITING":  # noqa: ASYNC110 - its worker has it there soon
                await asyncio.sleep(0.01)
        decision = {"name": "approval", "is_approved": False, "comment": "too early"}
        refused = await client.post(f"{V1}/runs/r/approve", json=decision)
        assert (refused.status_code, "only ann" in refused.text) == (422, True)
        assert (await rival.post(f"{V1}/runs/r/approve", json={**decision, "by": "ann"})).status_code == 404
        assert (await client.post(f"{V1}/runs/r/approve", json={**decision, "name": "other"})).status_code == 404
        assert (await client.post(f"{V1}/runs/s/approve", json={"name": "approve"})).status_code == 422
        done = await client.post(f"{V1}/runs/r/approve", json={**decision, "by": "ann"})
        assert (done.status_code, done.json()["action"]) == (202, "approve")
        assert await api.well.run("r").result(timeout=20) is False


@async_test
async def test_a_link_is_given_to_an_approver_and_no_answer_of_another_uses_it_up():
    async with served() as api, api.client("operator") as client, api.client(None) as somebody:
        await client.put(f"{V1}/runs/r", json={"workflow": "release"})
        while await api.well.run("r").status() != "WAITING":  # noqa: ASYNC110 - its worker has it there soon
            await asyncio.sleep(0.01)
        for by in (None, "bob"):
            refused = await client.post(f"{V1}/runs/r/links", json={"signal": "approval", "by": by})
            assert (refused.status_code, "ann" in refused.text) == (422, True)
        open_to_all, _ = await api.well.access.create_link("r", "approval", workspace="acme")
        assert (await somebody.post(f"/links/{open_to_all}", data={"by": "bob", "decision": "approve"})).status_code == 403
        assert await api.well.access.link(open_to_all) is not None
        made = await client.post(f"{V1}/runs/r/links", json={"signal": "approval", "by": "ann"})
        assert (await somebody.post(made.json()["url"], data={"decision": "approve"})).status_code == 200
        assert await api.well.run("r").result(timeout=20) is True


@async_test
async def test_a_link_is_used_once_and_expires():
    clock = FakeClock()
    async with AsyncStepwell("memory://", worker=False, clock=clock) as well:
        secret, link = await well.access.create_link("r", "approve", ttl="1h")
        assert await well.access.redeem_link(secret) == link
        assert await well.access.redeem_link(secret) is None
        assert await well.access.link(secret) is None
        late, _ = await well.access.create_link("r", "approve", ttl="1h")
        clock.advance("61m")
        assert await well.access.redeem_link(late) is None
        for wrong in ("", "x", secret[:-1], "\x00", "é" * 500):
            assert await well.access.link(wrong) is None

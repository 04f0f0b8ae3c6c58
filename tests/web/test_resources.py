"""Resources of the API beside runs: queue, schedules, definitions, workspaces, state, conversations, locks, tokens, audit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.web.servers import approve, async_test, fail, greet, served

from stepwell import migration
from stepwell.web.bulk_operations import BulkOperation, BulkOperations
from stepwell.web.problem import HttpProblem

__all__ = ["approve", "fail", "greet"]

V1 = "/api/v1"


@async_test
async def test_an_item_is_enqueued_once_per_idempotency_key():
    async with served(worker=False) as api, api.client() as client:
        headers = {"Idempotency-Key": "k"}
        body = {"workflow": "greet", "input": "Ada"}
        replies = await asyncio.gather(*(client.post(f"{V1}/queue/items", json=body, headers=headers) for _ in range(4)))
        assert {reply.status_code for reply in replies} == {202}
        assert len({reply.json()["item_id"] for reply in replies}) == 1
        assert [reply.headers.get("idempotency-replayed") for reply in replies].count("true") == 3
        other = await client.post(f"{V1}/queue/items", json={"workflow": "approve"}, headers=headers)
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
        item = (await client.get(replies[0].headers["location"])).json()
        assert (item["status"], item["input"], item["workspace_id"]) == ("QUEUED", "Ada", "acme")
        assert (await client.get(f"{V1}/queue/items/{item['item_id']}/why")).json()["codes"]
        assert (await client.post(f"{V1}/queue/items/{item['item_id']}/cancel")).json()["status"] == "CANCELLED"
        assert (await client.post(f"{V1}/queue/items/{item['item_id']}/redrive")).status_code == 202
        assert (await client.get(f"{V1}/queue/lanes")).json()["items"][0]["depth"] == 1


@async_test
async def test_limits_of_all_the_store_need_a_token_for_all_of_it():
    async with served(worker=False) as api, api.client() as client, api.client("store") as store:
        assert (await client.put(f"{V1}/tiers/free", json={"concurrency": 100})).status_code == 403
        assert (await client.put(f"{V1}/workspaces/acme", json={"tier": "unlimited"})).status_code == 403
        assert (await store.put(f"{V1}/tiers/gold", json={"concurrency": 7})).json()["concurrency"] == 7
        anything = {"If-Match": "*"}
        for limits in ({"concurrency": None}, {"child_concurrency": 5}):
            assert limits.items() <= (await store.put(f"{V1}/tiers/gold", json=limits, headers=anything)).json().items()
        assert (await store.put(f"{V1}/tiers/gold", json={"child_concurrency": 0}, headers=anything)).status_code == 422
        assert (await store.put(f"{V1}/workspaces/new", json={"tier": "gold"})).json()["tier"] == "gold"
        assert [each["workspace_id"] for each in (await client.get(f"{V1}/workspaces")).json()["items"]] == ["acme"]
        assert (await client.post(f"{V1}/workspaces/acme/pause")).json()["is_paused"] is True
        assert (await store.put(f"{V1}/queues/mail", json={"concurrency": 2})).json()["concurrency"] == 2
        assert (await store.post(f"{V1}/queues/mail/pause")).json()["is_paused"] is True
        assert (await store.get(f"{V1}/queue/demand")).status_code == 200
        assert (await store.get(f"{V1}/workers")).json()["items"] == []


@async_test
async def test_limits_and_schedules_are_changed_only_by_who_knows_what_they_are():
    schedule = {"workflow": "greet", "every_ms": 60_000}
    changes = [
        ("/tiers/gold", {"concurrency": 7}, {"concurrency": 8}),
        ("/queues/mail", {"concurrency": 2}, {"concurrency": 3}),
        ("/workspaces/new", {"tier": "free"}, {"tier": "scale"}),
        ("/schedules/nightly", schedule, {**schedule, "priority": 3}),
    ]
    async with served(worker=False) as api, api.client("store") as store:
        for path, first, second in changes:
            url = f"{V1}{path}?workspace=acme"
            made = await store.put(url, json=first, headers={"If-None-Match": "*"})
            assert made.status_code == 200, (path, made.text)
            assert (await store.put(url, json=first, headers={"If-None-Match": "*"})).status_code == 412
            blind = await store.put(url, json=second)
            assert (blind.status_code, blind.json()["code"]) == (428, "precondition_required"), path
            read = await store.get(url)
            assert read.headers["etag"] == made.headers["etag"]
            assert (await store.get(url, headers={"If-None-Match": read.headers["etag"]})).status_code == 304
            known = {"If-Match": read.headers["etag"]}
            assert (await store.put(url, json=second, headers=known)).status_code == 200, path
            late = await store.put(url, json=first, headers=known)
            assert (late.status_code, late.json()["code"]) == (412, "precondition_failed")
            assert second.items() <= (await store.get(url)).json().items() or path == "/schedules/nightly"
        override = f"{V1}/workspaces/new/overrides/concurrency"
        assert (await store.put(override, json={"value": 9, "ttl_ms": 60_000})).status_code == 428
        etag = (await store.get(f"{V1}/workspaces/new")).headers["etag"]
        done = await store.put(override, json={"value": 9, "ttl_ms": 60_000}, headers={"If-Match": etag})
        assert done.json()["overrides"]["concurrency"]["value"] == 9
        assert (await store.delete(override, headers={"If-Match": etag})).status_code == 412
        assert (await store.delete(override, headers={"If-Match": done.headers["etag"]})).json()["overrides"] == {}
        old = (await store.get(f"{V1}/schedules/nightly?workspace=acme")).headers["etag"]
        await api.well.schedules.pause("nightly")
        assert (await store.delete(f"{V1}/schedules/nightly?workspace=acme", headers={"If-Match": old})).status_code == 412


@async_test
async def test_a_reply_has_only_the_fields_that_were_asked_for():
    async with served(worker=False) as api, api.client() as client:
        await api.well.start(greet, workspace="acme", execution_id="a")
        page = (await client.get(f"{V1}/runs?fields=execution_id,status&limit=1")).json()
        assert page["items"] == [{"execution_id": "a", "status": "PENDING"}]
        assert page.keys() == {"items", "next_cursor", "has_more"}
        assert (await client.get(f"{V1}/runs/a?fields=workflow_id")).json() == {"workflow_id": "greet"}
        wrong = await client.get(f"{V1}/runs?fields=execution_id,secret")
        assert (wrong.status_code, "'secret'" in wrong.json()["detail"]) == (422, True)
        assert (await client.get(f"{V1}/state?fields=")).status_code == 422


@async_test
async def test_backups_are_made_checked_and_listed_on_the_machine_of_the_server(tmp_path: Path):
    folder = tmp_path / "backups"
    async with served(worker=False, backups=folder) as api, api.client("store", address="127.0.0.1") as store:
        await api.well.start(greet, workspace="acme", execution_id="a")
        assert (await store.get(f"{V1}/backups")).json()["items"] == []
        made = await store.post(f"{V1}/backups", headers={"Stepwell-Reason": "before the change"})
        assert (made.status_code, made.json()["generation"], made.json()["counts"]["executions"]) == (201, 1, 1)
        assert (await store.post(f"{V1}/backups", json={"keep": 1})).json()["generation"] == 2
        assert [each["generation"] for each in (await store.get(f"{V1}/backups")).json()["items"]] == [1, 2]
        assert (await store.get(f"{V1}/backups/check")).json()["ok"] is True
        assert (await api.well.requests.audit("default"))[-1].reason == "before the change"
        [segment, *_] = folder.glob("*.jsonl.z")
        segment.write_bytes(b"")
        assert (await store.get(f"{V1}/backups/check")).json()["ok"] is False
        async with api.client("store") as elsewhere, api.client("acme", address="127.0.0.1") as tenant:
            for method, path in (
                ("GET", "/backups"),
                ("POST", "/backups"),
                ("GET", "/backups/check"),
                ("POST", "/migrations/state"),
            ):
                assert (await elsewhere.request(method, V1 + path)).status_code == 404, path
                assert (await tenant.request(method, V1 + path)).status_code == 403, path
    async with served(worker=False) as api, api.client("store", address="127.0.0.1") as store:
        refused = await store.post(f"{V1}/backups")
        assert (refused.status_code, refused.json()["code"]) == (409, "not_configured")


@async_test
async def test_state_is_migrated_after_a_dry_run_and_a_backup(tmp_path: Path):
    def doubled(value: int) -> int:
        return value * 2

    async with served(worker=False, backups=tmp_path / "backups") as api, api.client("store", address="127.0.0.1") as store:
        await api.well.state.custom("prices-over-http").set("lamp", 21)
        migration(scope="custom/prices-over-http", from_version=1, to_version=2)(doubled)
        only = {"scope": "custom/prices-over-http"}
        [line] = (await store.post(f"{V1}/migrations/state", json=only)).json()["lines"]
        assert (line["migrated"], list((tmp_path / "backups").iterdir()) if (tmp_path / "backups").exists() else []) == (1, [])
        done = (await store.post(f"{V1}/migrations/state", json={**only, "is_dry_run": False})).json()
        assert (done["is_verified"], done["problems"]) == (True, [])
        assert await api.well.state.custom("prices-over-http").get("lamp") == 42
        assert (await store.get(f"{V1}/backups/check")).json()["ok"] is True
        assert (await store.post(f"{V1}/migrations/state", json={"scope": "custom/none"})).status_code == 422


@async_test
async def test_a_schedule_is_put_run_and_deleted():
    async with served(worker=False) as api, api.client() as client:
        body = {"workflow": "greet", "cron": "0 3 * * *", "zone": "Europe/Berlin"}
        assert (await client.put(f"{V1}/schedules/nightly", json=body)).json()["workspace_id"] == "acme"
        assert len((await client.get(f"{V1}/schedules/nightly/next?count=3")).json()["items"]) == 3
        assert (await client.post(f"{V1}/schedules/nightly/run")).status_code == 202
        assert (await client.post(f"{V1}/schedules/nightly/pause")).json()["is_paused"] is True
        assert (await client.post(f"{V1}/schedules/nightly/resume")).json()["is_paused"] is False
        span = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-03T00:00:00Z"}
        assert len((await client.post(f"{V1}/schedules/nightly/backfill", json=span)).json()["items"]) == 2
        assert (await client.delete(f"{V1}/schedules/nightly")).status_code == 204
        assert (await client.get(f"{V1}/schedules")).json()["items"] == []


@async_test
async def test_a_definition_is_stored_and_a_path_is_not_read():
    async with served(worker=False) as api, api.client("store") as store:
        document = {"name": "ship", "version": 1, "do": [{"wait": "1s"}]}
        assert (await store.put(f"{V1}/definitions/ship", json={"document": document})).json()["version"] == 1
        found = await store.get(f"{V1}/definitions/ship")
        assert found.json()["document"]["name"] == "ship"
        assert (await store.get(f"{V1}/definitions/ship", headers={"If-None-Match": found.headers["etag"]})).status_code == 304
        assert (await store.post(f"{V1}/definitions/ship/pause")).status_code == 204
        refused = await store.post(f"{V1}/runs", json={"workflow": "ship"})
        assert (refused.status_code, refused.json()["code"]) == (409, "SW-206")
        secret = await store.put(f"{V1}/definitions/ship", json={"document": "/etc/passwd.yaml"})
        assert (secret.status_code, secret.json()["code"]) == (422, "SW-105")


@async_test
async def test_state_is_written_at_the_revision_that_was_read():
    async with served(worker=False) as api, api.client() as client:
        key = f"{V1}/state/workflow:a%253Ab/keys/x%2Fy"
        assert (await client.put(key, json={"value": 1})).status_code == 428
        made = await client.put(key, json={"value": 1}, headers={"If-None-Match": "*"})
        assert made.status_code == 200
        assert (await client.put(key, json={"value": 2}, headers={"If-None-Match": "*"})).status_code == 412
        etag = (await client.get(key)).headers["etag"]
        assert (await client.put(key, json={"value": 2}, headers={"If-Match": etag})).status_code == 200
        assert (await client.put(key, json={"value": 3}, headers={"If-Match": etag})).status_code == 412
        assert (await client.delete(key, headers={"If-Match": etag})).status_code == 412
        assert await api.well.state.workspace("acme").workflow("a:b").get("x/y") == 2
        assert (await client.post(f"{V1}/state/workspace/keys/n/increment", json={"by": 5})).json()["value"] == 5
        assert [each["scope"] for each in (await client.get(f"{V1}/state")).json()["items"]] == ["workflow:a%3Ab", "workspace"]
        assert (await client.get(f"{V1}/state/workflow:a%253Ab/keys")).json()["items"] == ["x/y"]
        assert (await client.delete(key, headers={"If-Match": "*"})).status_code == 204
        assert (await client.get(key)).status_code == 404
        assert (await client.get(f"{V1}/state/global/keys")).status_code == 403
        assert (await client.get(f"{V1}/state/access/keys")).status_code == 422


@async_test
async def test_a_conversation_is_kept():
    async with served(worker=False) as api, api.client() as client:
        talk = f"{V1}/conversations/talk"
        assert (await client.put(talk, json={"state": {"step": 1}, "user": "ada"})).status_code == 200
        assert (await client.get(talk)).json()["state"] == {"step": 1}
        assert [each["conversation_id"] for each in (await client.get(f"{V1}/conversations?user=ada")).json()["items"]] == ["talk"]
        assert (await client.get(f"{talk}/turns")).json()["items"] == []
        assert (await client.delete(talk)).status_code == 204
        assert (await client.get(talk)).status_code == 404


@async_test
async def test_a_lock_has_one_holder_and_a_rising_fence():
    async with served(worker=False) as api, api.client() as client:
        lock = f"{V1}/locks/nightly"
        first = (await client.post(f"{lock}/acquire", json={"ttl_ms": 60_000, "holder": "a"})).json()
        assert (await client.post(f"{lock}/acquire", json={"holder": "a"})).json()["fence"] == first["fence"]
        held = await client.post(f"{lock}/acquire", json={"holder": "b"})
        assert (held.status_code, held.json()["code"]) == (409, "SW-204")
        assert "retry-after" in held.headers
        proof = {"holder": "a", "fence": first["fence"]}
        assert (await client.post(f"{lock}/renew", json=proof)).status_code == 200
        assert (await client.post(f"{lock}/release", json=proof)).status_code == 204
        assert (await client.post(f"{lock}/release", json=proof)).json()["code"] == "SW-203"
        assert (await client.post(f"{lock}/acquire", json={"holder": "b"})).json()["fence"] > first["fence"]


@async_test
async def test_an_admin_makes_and_revokes_tokens_of_its_workspace():
    async with served(worker=False) as api, api.client() as client:
        made = await client.post(f"{V1}/access_tokens", json={"name": "ci", "role": "operator", "ttl_ms": 60_000})
        assert made.status_code == 201
        identity = await api.well.access.identify(made.json()["text"])
        assert identity is not None
        assert (identity.workspace, identity.role) == ("acme", "operator")
        listed = await client.get(f"{V1}/access_tokens")
        assert made.json()["text"].rpartition("_")[2] not in listed.text
        assert (await client.delete(f"{V1}/access_tokens/{made.json()['token']['token_id']}")).status_code == 204
        assert await api.well.access.identify(made.json()["text"]) is None


@async_test
async def test_the_audit_has_every_change_with_its_reason():
    async with served(worker=False) as api, api.client() as client, api.client("operator") as operator:
        await operator.put(f"{V1}/runs/a", json={"workflow": "approve"}, headers={"Stepwell-Reason": "a customer called"})
        await operator.post(f"{V1}/runs/missing/cancel")
        await operator.get(f"{V1}/runs")
        page = (await client.get(f"{V1}/audit?limit=1")).json()
        rest = (await client.get(f"{V1}/audit", params={"cursor": page["next_cursor"]})).json()
        entries = page["items"] + rest["items"]
        assert [(each["action"], each["actor"], each["status"]) for each in entries] == [
            ("cancel_run", "operator", 404),
            ("put_run", "operator", 202),
        ]
        assert entries[1]["reason"] == "a customer called"


@async_test
async def test_a_key_with_a_line_break_is_reached():
    async with served(worker=False) as api, api.client() as client:
        url = f"{V1}/state/workspace/keys/a%0Ab"
        assert (await client.put(url, json={"value": 1}, headers={"If-None-Match": "*"})).status_code == 200
        assert (await client.get(url)).json()["key"] == "a\nb"
        lost = await client.get(f"{V1}/no%0Awhere")
        assert (lost.status_code, lost.json()["code"]) == (404, "no_such_route")


@async_test
async def test_a_bulk_action_does_what_its_dry_run_said_or_nothing():
    async with served() as api, api.client("operator") as client:
        for number in range(3):
            await client.put(f"{V1}/runs/r{number}", json={"workflow": "approve"})
        body = {"action": "cancel", "filter": "workflow:approve"}
        dry = (await client.post(f"{V1}/bulk", json=body)).json()
        assert (dry["is_dry_run"], dry["count"], sorted(dry["examples"])) == (True, 3, ["r0", "r1", "r2"])
        await client.put(f"{V1}/runs/later", json={"workflow": "approve"})
        moved = await client.post(f"{V1}/bulk", json={**body, "hash": dry["hash"]})
        assert (moved.status_code, moved.json()["count"]) == (412, 4)
        done = (await client.post(f"{V1}/bulk", json={**body, "hash": moved.json()["hash"]})).json()
        assert (done["done"], done["failures"]) == (4, [])
        for number in range(3):
            view = (await client.get(f"{V1}/runs/r{number}/result?wait=20")).json()
            assert view["status"] == "CANCELLED"
        again = (await client.post(f"{V1}/bulk", json=body)).json()
        failed = (await client.post(f"{V1}/bulk", json={**body, "hash": again["hash"]})).json()
        assert {each["code"] for each in failed["failures"]} == {"SW-205"}
        assert (await client.post(f"{V1}/bulk", json={"action": "cancel", "filter": ""})).status_code == 422
        assert (await client.post(f"{V1}/bulk", json={"action": "delete", "filter": "status:FAILED"})).status_code == 403


@async_test
async def test_a_bulk_action_goes_on_is_followed_and_belongs_to_its_workspace():
    async with served() as api, api.client() as client, api.client("rival") as rival:
        for number in range(30):
            await api.well.create(f"r{number}", "acme")
        body = {"action": "delete", "filter": "status:PENDING"}
        dry = (await client.post(f"{V1}/bulk", json=body)).json()
        begun = await client.post(f"{V1}/bulk", json={**body, "hash": dry["hash"]}, headers={"Prefer": "wait=0"})
        assert begun.status_code == 202
        where = begun.headers["location"]
        while not (found := (await client.get(where)).json())["is_ended"]:  # noqa: ASYNC110 - the server goes on with it
            await asyncio.sleep(0.01)
        assert (found["count"], found["done"] + found["failed"], found["is_aborted"]) == (30, 30, False)
        assert (await rival.get(where)).status_code == 404
        assert (await rival.post(f"{where}/abort")).status_code == 404
        assert (await client.post(f"{where}/abort")).json()["is_aborted"] is False
        entries = [each for each in await api.well.requests.audit("acme") if each.action == "bulk_runs"]
        assert "delete 30 runs that match status:PENDING" in entries[0].resource


@async_test
async def test_an_aborted_bulk_action_begins_with_no_further_run():
    begun: list[str] = []
    gate = asyncio.Event()

    async def act(execution_id: str) -> None:
        begun.append(execution_id)
        await gate.wait()

    operations = BulkOperations()
    operation = BulkOperation("acme", "cancel", [str(number) for number in range(100)])
    operations.start(operation, act)
    await operation.wait(0.05)
    assert not operation.is_ended
    operation.abort()
    gate.set()
    await operation.wait(5)
    assert (operation.is_ended, operation.done, len(begun)) == (True, len(begun), operation.done)
    assert 0 < operation.done < 100
    for _ in range(10):
        gate.clear()
        operations.start(BulkOperation("acme", "cancel", ["a"]), act)
    await asyncio.sleep(0)
    with pytest.raises(HttpProblem, match="under way"):
        operations.start(BulkOperation("acme", "cancel", ["b"]), act)
    await operations.close()


async def bulk(client: httpx.AsyncClient, action: str, ids: list[str], **headers: str) -> dict[str, Any]:
    """Act on runs by the hash of a dry run, and return the report."""
    body = {"action": action, "ids": ids}
    dry = (await client.post(f"{V1}/bulk", json=body)).json()
    assert (dry["is_dry_run"], dry["count"]) == (True, len(ids))
    done = await client.post(f"{V1}/bulk", json={**body, "hash": dry["hash"]}, headers={"Prefer": "wait=20", **headers})
    return done.json()


@async_test
async def test_runs_are_paused_resumed_and_forked_in_bulk():
    async with served() as api, api.client("operator") as client:
        ids = [f"r{number}" for number in range(3)]
        for name in ids:
            await client.put(f"{V1}/runs/{name}", json={"workflow": "approve"})
        paused = await bulk(client, "pause", ids, **{"Stepwell-Reason": "the bank is down"})
        assert (paused["done"], paused["failures"]) == (3, [])
        progress = (await client.get(f"{V1}/runs/r0/progress")).json()
        assert (progress["pause"]["reason"], progress["pause"]["by"]) == ("the bank is down", "operator")
        held = (await client.get(f"{V1}/runs", params={"filter": "has:pause", "count": "exact"})).json()
        assert sorted(each["execution_id"] for each in held["items"]) == ids
        assert held["count"] == {"value": 3, "is_exact": True}
        assert (await bulk(client, "resume", ids))["done"] == 3
        assert {each["code"] for each in (await bulk(client, "resume", ids))["failures"]} == {"SW-201"}
        assert (await bulk(client, "fork", ids))["done"] == 3
        assert len((await client.get(f"{V1}/runs")).json()["items"]) == 6


@async_test
async def test_payloads_are_deleted_in_bulk_by_an_admin_and_the_runs_stay_listed():
    async with served() as api, api.client() as client, api.client("operator") as operator:
        await client.put(f"{V1}/runs/a", json={"workflow": "greet", "input": "Ada"})
        await client.get(f"{V1}/runs/a/result?wait=20")
        await client.put(f"{V1}/runs/b", json={"workflow": "approve"})
        refused = await operator.post(f"{V1}/bulk", json={"action": "delete_payloads", "ids": ["a"]})
        assert refused.status_code == 403
        done = await bulk(client, "delete_payloads", ["a", "b"])
        assert (done["done"], [each["execution_id"] for each in done["failures"]]) == (1, ["b"])
        assert (await client.get(f"{V1}/runs/a")).json()["input"] is None
        gone = await client.get(f"{V1}/runs/a/steps")
        assert gone.status_code == 410
        assert "by a request" in gone.json()["detail"]
        listed = (await client.get(f"{V1}/runs")).json()["items"]
        assert ("a", "COMPLETED") in [(each["execution_id"], each["status"]) for each in listed]
        assert (await client.get(f"{V1}/runs/a/verification")).json()["ok"] is True


@async_test
async def test_a_bulk_action_reaches_no_other_workspace():
    async with served(worker=False) as api, api.client("rival") as rival:
        await api.well.start(approve, workspace="acme", execution_id="a")
        found = (await rival.post(f"{V1}/bulk", json={"action": "cancel", "filter": "workflow:approve"})).json()
        assert (found["count"], found["examples"]) == (0, [])

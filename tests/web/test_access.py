"""Access: tokens, sessions, roles, and a route table that refuses all other callers."""

from __future__ import annotations

import pytest
from starlette.routing import Mount
from tests.web.servers import Api, approve, async_test, fail, greet, served

from stepwell import AsyncStepwell, FakeClock, Identity, InvalidInput, NotFound, Role
from stepwell.testing.store_access import store_under
from stepwell.web.api.route_table import TABLE
from stepwell.web.authentication import ProxyIdentity, csrf_token
from stepwell.web.route import Route
from stepwell.web.uvicorn_server import ForwardedAddress

OPEN = {"get_openapi", "list_problems", "get_problem"}
"""The only routes that answer without a token."""

__all__ = ["approve", "fail", "greet"]


@async_test
async def test_a_token_opens_its_workspace_until_it_is_revoked():
    async with served() as api, api.client() as client:
        assert (await client.get("/api/v1/whoami")).json() == {"name": "acme", "role": "admin", "workspace": "acme"}
        [token] = [each for each in await api.well.access.tokens() if each.name == "acme"]
        assert await api.well.access.revoke_token(token.token_id)
        refused = await client.get("/api/v1/whoami")
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
        assert refused.headers["www-authenticate"].startswith("Bearer")


@async_test
async def test_the_store_has_no_secret_of_a_token():
    clock = FakeClock()
    async with AsyncStepwell("memory://", worker=False, clock=clock) as well:
        issued = await well.access.create_token("ci", role="operator", workspace="default", ttl="1h")
        secret = issued.text.rpartition("_")[2]
        rows = repr(store_under(well).scan("access/default"))
        assert issued.token.token_id in rows
        assert secret not in rows
        assert secret not in repr(issued)
        clock.advance("61m")
        assert await well.access.identify(issued.text) is None
        assert await well.access.tokens() == []


@async_test
async def test_a_wrong_secret_an_unknown_id_and_nonsense_stand_for_nobody():
    async with AsyncStepwell("memory://", worker=False) as well:
        text = (await well.access.create_token("ci")).text
        for wrong in (text + "x", text[:-1], "swt_0123456789abcdef_x", "", "swt__", "Bearer", "swt_%00_\ud800", "é" * 500):
            assert await well.access.identify(wrong) is None
        with pytest.raises(InvalidInput, match="no role"):
            await well.access.create_token("ci", role="root")
        with pytest.raises(NotFound, match="no workspace"):
            await well.access.create_token("ci", workspace="nowhere")


@async_test
async def test_a_ticket_opens_one_session_which_ends_with_its_token():
    async with AsyncStepwell("memory://", worker=False) as well:
        issued = await well.access.create_token("ci", role="admin")
        identity = await well.access.identify(issued.text)
        assert identity is not None
        ticket = await well.access.create_ticket(identity)
        entered = await well.access.redeem_ticket(ticket)
        assert entered == identity
        assert await well.access.redeem_ticket(ticket) is None
        session = await well.access.open_session(identity)
        assert await well.access.session(session) == identity
        await well.access.revoke_token(issued.token.token_id)
        assert await well.access.session(session) is None


@async_test
async def test_a_ticket_opens_one_stream_and_nothing_else():
    async with served() as api, api.client("operator") as client, api.client(None) as nobody:
        await client.put("/api/v1/runs/a", json={"workflow": "approve"})
        made = await client.post("/api/v1/event_tickets")
        assert (made.status_code, made.json()["ttl_ms"]) == (201, 60_000)
        url = f"/api/v1/runs/a/events?wait=0&ticket={made.json()['ticket']}"
        found = await nobody.get(url, headers={"Accept": "application/json"})
        assert (found.status_code, found.json()["items"][0]["event"]) == (200, "snapshot")
        again = await nobody.get(url, headers={"Accept": "application/json"})
        assert (again.status_code, "was used" in again.json()["detail"]) == (401, True)
        other = (await client.post("/api/v1/event_tickets")).json()["ticket"]
        assert (await nobody.get(f"/api/v1/runs/a?ticket={other}")).status_code == 401
        assert await api.well.access.redeem_ticket(other) is None
        identity = await api.well.access.redeem_stream_ticket(other)
        assert identity is not None
        assert (identity.role, identity.workspace) == (Role.VIEWER, "acme")


@async_test
async def test_a_ticket_for_a_stream_reaches_no_other_workspace_than_the_one_it_was_made_in():
    async with served() as api, api.client("store") as client, api.client(None) as nobody:
        tickets = [(await client.post("/api/v1/event_tickets?workspace=acme")).json()["ticket"] for _ in range(2)]
        here = await nobody.get(f"/api/v1/events?wait=0&ticket={tickets[0]}", headers={"Accept": "application/json"})
        assert here.status_code == 200
        other = f"/api/v1/events?wait=0&workspace=rival&ticket={tickets[1]}"
        assert (await nobody.get(other, headers={"Accept": "application/json"})).status_code == 400


@async_test
async def test_a_ticket_for_a_stream_ends_with_its_token():
    async with served() as api, api.client("viewer") as client, api.client(None) as nobody:
        ticket = (await client.post("/api/v1/event_tickets")).json()["ticket"]
        [token] = [each for each in await api.well.access.tokens() if each.name == "viewer"]
        await api.well.access.revoke_token(token.token_id)
        assert (await nobody.get(f"/api/v1/events?wait=0&ticket={ticket}")).status_code == 401


@async_test
async def test_a_repeated_request_for_a_secret_makes_no_second_one():
    async with served() as api, api.client() as client:
        body, key = {"name": "ci", "role": "viewer"}, {"Idempotency-Key": "once"}
        first = await client.post("/api/v1/access_tokens", json=body, headers=key)
        assert first.status_code == 201
        second = await client.post("/api/v1/access_tokens", json=body, headers=key)
        assert (second.status_code, second.json()["code"]) == (409, "secret_shown_once")
        assert second.headers["idempotency-replayed"] == "true"
        assert first.json()["text"] not in second.text
        assert [each.name for each in await api.well.access.tokens()].count("ci") == 1
        other = await client.post("/api/v1/access_tokens", json={**body, "role": "operator"}, headers=key)
        assert other.status_code == 422


def address(route: Route) -> str:
    return "/api/v1" + route.path.format(**dict.fromkeys(route.parameters, "x"))


@async_test
async def test_every_route_refuses_a_caller_without_a_token():
    async with served() as api, api.client(None) as client:
        for route in TABLE.routes:
            reply = await client.request(route.method, address(route))
            assert (reply.status_code == 401) == (route.name not in OPEN), route.name


OPEN_PAGES = {
    "/livez": {"GET"},
    "/readyz": {"GET"},
    "/metrics": {"GET"},  # from this machine only
    "/login": {"GET", "POST"},
    "/enter": {"GET"},
    "/logout": {"POST"},
    "/links/{secret}": {"GET", "POST"},
    "/hooks/{workspace}/{name}": {"POST"},
}
"""All addresses beside the API and the dashboard; the dashboard's files under /assets/ need no session either."""


@async_test
async def test_nothing_but_these_addresses_answers_without_a_token_or_a_session():
    async with served() as api, api.client(None) as client:
        found: dict[str, set[str]] = {}
        for route in api.app._app.routes:  # those of starlette, inside of the envelope
            if not isinstance(route, Mount):
                found.setdefault(route.path, set()).update(route.methods - {"HEAD"})
        assert found == OPEN_PAGES
        assert [route.path for route in api.app._app.routes if isinstance(route, Mount)] == ["/api/v1", ""]
        for path in ("/", "/runs", "/nowhere", "/assets", "/preferences", "/live"):
            for method in ("GET", "POST", "DELETE"):
                reply = await client.request(method, path)
                assert (reply.status_code, reply.headers["location"].partition("?")[0]) == (303, "/login"), (method, path)


@async_test
async def test_every_route_refuses_a_role_that_is_too_low():
    async with served() as api, api.client("viewer") as client:
        for route in TABLE.routes:
            if route.role in (Role.OPERATOR, Role.ADMIN):
                reply = await client.request(route.method, address(route), json={})
                assert (reply.status_code, reply.json()["code"]) == (403, "forbidden"), route.name


@async_test
async def test_the_workspace_comes_from_the_token_alone():
    async with served() as api, api.client() as client, api.client("store") as store:
        refused = await client.get("/api/v1/runs", params={"workspace": "rival"})
        assert (refused.status_code, refused.json()["code"]) == (400, "malformed")
        assert (await client.post("/api/v1/runs", json={"workflow": "greet", "workspace": "rival"})).status_code == 422
        await api.well.start(greet, workspace="rival", execution_id="r")
        assert [each["execution_id"] for each in (await store.get("/api/v1/runs?workspace=rival")).json()["items"]] == ["r"]
        assert (await store.get("/api/v1/runs")).json()["items"] == []


@async_test
async def test_a_session_changes_nothing_without_its_csrf_token():
    async with served() as api, api.client(None) as client:
        page = await client.post("/login", data={"token": api.tokens["operator"], "next": "//evil.test"})
        assert (page.status_code, page.headers["location"]) == (303, "/")
        assert "HttpOnly" in page.headers["set-cookie"]
        assert "samesite=strict" in page.headers["set-cookie"].lower()
        body = {"workflow": "greet"}
        assert (await client.get("/api/v1/whoami")).json()["name"] == "operator"
        assert (await client.post("/api/v1/runs", json=body)).status_code == 403
        headers = {"X-CSRF-Token": csrf_token(client.cookies["stepwell_session"])}
        assert (await client.post("/api/v1/runs", json=body, headers=headers)).status_code == 202
        foreign = {**headers, "Origin": "https://evil.test"}
        assert (await client.post("/api/v1/runs", json=body, headers=foreign)).status_code == 403
        assert (await client.post("/logout", data={"csrf": headers["X-CSRF-Token"]})).status_code == 303
        client.cookies.set("stepwell_session", "x")
        assert (await client.get("/api/v1/whoami")).status_code == 401


@async_test
async def test_a_one_time_link_signs_in_once():
    async with served() as api, api.client(None) as client:
        ticket = await api.well.access.create_ticket(Identity(name="local", role=Role.ADMIN, workspace=None))
        assert (await client.head(f"/enter?ticket={ticket}")).status_code == 200  # who only looks leaves it as it is
        assert (await client.get(f"/enter?ticket={ticket}")).headers["location"] == "/"
        assert (await client.get("/api/v1/whoami")).json()["name"] == "local"
        assert (await client.get(f"/enter?ticket={ticket}")).status_code == 401


@async_test
async def test_the_host_application_may_say_who_calls():
    def identify(request: object) -> Identity | None:
        return Identity(name="ada", role=Role.VIEWER, workspace="acme") if "x-user" in request.headers else None

    async with served(identify=identify) as api, api.client("acme") as client:
        assert (await client.get("/api/v1/whoami")).status_code == 401  # tokens are not looked at
        assert (await client.get("/api/v1/whoami", headers={"X-User": "ada"})).json()["name"] == "ada"


@async_test
async def test_a_foreign_host_name_is_refused():
    async with served(allowed_hosts=["localhost"]) as api, api.client() as client:
        assert (await client.get("/livez")).status_code == 421
        assert (await client.get("http://localhost:8420/livez")).status_code == 200


@async_test
async def test_signing_in_and_out_is_in_the_audit():
    async with served() as api, api.client(None) as client:
        await client.post("/login", data={"token": api.tokens["operator"]})
        await client.post("/logout", data={"csrf": csrf_token(client.cookies["stepwell_session"])})
        assert [(each.action, each.actor) for each in await api.well.requests.audit("acme")] == [
            ("sign_out", "operator"),
            ("sign_in", "operator"),
        ]


@async_test
async def test_a_ticket_expires():
    clock = FakeClock()
    async with AsyncStepwell("memory://", worker=False, clock=clock) as well:
        ticket = await well.access.create_ticket(Identity(name="local", role=Role.ADMIN, workspace=None))
        clock.advance("11m")
        assert await well.access.redeem_ticket(ticket) is None


PROXY = ProxyIdentity(user_header="X-Forwarded-User", role=Role.OPERATOR, workspace="acme", proxies=("10.0.0.1",))


@async_test
async def test_a_header_identifies_nobody_unless_the_server_trusts_a_proxy():
    async with served() as api, api.client(None, address="10.0.0.1") as client:
        assert (await client.get("/api/v1/whoami", headers={"X-Forwarded-User": "ada"})).status_code == 401


@async_test
async def test_only_the_trusted_proxy_names_who_calls():
    async with served(proxy=PROXY) as api, api.client(None, address="10.0.0.1") as proxy, api.client(None) as other:
        ada = {"X-Forwarded-User": "ada"}
        assert (await proxy.get("/api/v1/whoami", headers=ada)).json() == {"name": "ada", "role": "operator", "workspace": "acme"}
        assert (await other.get("/api/v1/whoami", headers=ada)).status_code == 401
        assert (await proxy.get("/api/v1/whoami")).status_code == 401
        for wrong in ("", " ", "x" * 300):
            assert (await proxy.get("/api/v1/whoami", headers={"X-Forwarded-User": wrong})).status_code == 401
        twice = [("X-Forwarded-User", "ada"), ("X-Forwarded-User", "root")]
        assert (await proxy.get("/api/v1/whoami", headers=twice)).status_code == 401
        token = {**ada, "Authorization": f"Bearer {api.tokens['viewer']}"}
        assert (await proxy.get("/api/v1/whoami", headers=token)).json()["name"] == "viewer"
        foreign = {**ada, "Origin": "https://evil.test"}
        assert (await proxy.post("/api/v1/runs", json={"workflow": "greet"}, headers=foreign)).status_code == 403


@async_test
async def test_a_proxy_may_name_roles_but_no_unknown_one():
    named = ProxyIdentity(user_header="X-User", role_header="X-Role", proxies=("10.0.0.1",))
    async with served(proxy=named) as api, api.client(None, address="10.0.0.1") as proxy:
        for role, status in (("admin", 200), ("viewer", 200), ("root", 401), ("", 401)):
            assert (await proxy.get("/api/v1/whoami", headers={"X-User": "ada", "X-Role": role})).status_code == status
    with pytest.raises(InvalidInput, match="name of a header"):
        ProxyIdentity(user_header="X User")
    with pytest.raises(InvalidInput, match="proxy's address"):
        ProxyIdentity(user_header="X-User", proxies=())


@async_test
async def test_the_proxy_is_known_by_its_own_address_and_not_by_what_it_forwards():
    async with served(proxy=PROXY) as api:
        app = ForwardedAddress(api.app, PROXY.proxies)
        headers = {"X-Forwarded-User": "ada", "X-Forwarded-For": "127.0.0.1"}
        for address, status in (("10.0.0.1", 200), ("203.0.113.9", 401)):
            async with Api(app, api.well, api.tokens).client(None, address=address) as client:
                assert (await client.get("/api/v1/whoami", headers=headers)).status_code == status
        async with Api(app, api.well, api.tokens).client(None, address="203.0.113.9") as client:
            assert (await client.get("/metrics", headers=headers)).status_code == 404


@async_test
async def test_what_retention_removed_is_gone_for_its_workspace_and_unknown_to_others():
    """T57: another workspace's tombstone is answered like an id that never was."""
    async with served(worker=False) as api, api.client() as client, api.client("rival") as rival:
        await api.well.create("mine", workspace="acme")
        for status in ("RUNNING", "COMPLETED"):
            async with api.well.transaction("mine") as tx:
                tx.set_status(status)
        await api.well.retention.put(executions=0)
        assert (await api.well.retention.apply()).removed == 1
        [tombstone] = (await client.get("/api/v1/tombstones")).json()["items"]
        assert tombstone["execution_id"] == "mine"
        assert (await client.get("/api/v1/tombstones/mine")).json() == tombstone
        assert (await rival.get("/api/v1/tombstones")).json()["items"] == []
        details = [(await rival.get(f"/api/v1/tombstones/{name}")).json()["detail"] for name in ("mine", "none")]
        assert details[0].replace("mine", "none") == details[1]
        assert (await client.get("/api/v1/retention")).status_code == 403
        async with api.client("store") as store:
            assert [each["tier"] for each in (await store.get("/api/v1/retention")).json()["items"]] == ["*"]
            assert (await store.get("/api/v1/retention/plan?within_ms=1000")).json()["counts"]["remove"] == 0
        gone = await client.get("/api/v1/runs/mine")
        assert (gone.status_code, gone.json()["code"], gone.json()["policy"]) == (410, "SW-209", "*")
        foreign, unknown = [(await rival.get(f"/api/v1/runs/{name}")).json() for name in ("mine", "none")]
        assert foreign["status"] == 404
        for body in (foreign, unknown):
            body.pop("request_id")
        assert str(foreign).replace("mine", "none") == str(unknown)

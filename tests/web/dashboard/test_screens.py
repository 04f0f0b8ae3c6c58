"""All screens: who may open them, what every page carries, and that nothing of a user is markup."""

from __future__ import annotations

import re

import pytest
from tests.web.dashboard.browsing import browsing, text_of
from tests.web.servers import async_test, greet, served

from stepwell.web.dashboard.screen import Screen
from stepwell.web.dashboard.screen_table import SCREENS

PAGES = [each for each in SCREENS.routes if each.method == "GET" and each.is_page]


def address(screen: Screen) -> str:
    return screen.path.format(**dict.fromkeys(re.findall(r"{(\w+)}", screen.path), "x"))


@async_test
async def test_every_screen_leads_a_stranger_to_the_sign_in_form():
    async with served() as api, api.client(None) as client:
        for screen in SCREENS.routes:
            reply = await client.request(screen.method, address(screen))
            assert reply.status_code == 303, screen.name
            assert reply.headers["location"].startswith("/login?next="), screen.name


@async_test
async def test_no_form_is_taken_without_the_csrf_token_of_the_session():
    async with browsing() as person:
        for screen in SCREENS.routes:
            if screen.method == "POST":
                reply = await person.client.post(address(screen), data={"name": "x"})
                assert reply.status_code == 403, screen.name


@pytest.mark.parametrize("name", [each.name for each in PAGES])
@async_test
async def test_every_page_is_framed_and_runs_only_its_own_scripts(name: str):
    screen = SCREENS.named(name)
    async with browsing() as person:
        page = await person.open(address(screen))
        policy = page.headers["content-security-policy"]
        [nonce] = set(re.findall(r"'nonce-([^']+)'", policy))
        assert "'unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert page.text.count("<h1") == 1
        assert '<a class="skip" href="#content">' in page.text
        for script in re.findall(r"<script[^>]*>", page.text):
            assert f'nonce="{nonce}"' in script
        assert not re.search(r"\s(on\w+|style)=", page.text)
        for element in re.findall(r"<[^>]* hx-[^>]*>", page.text):
            assert f'hx-nonce="{nonce}"' in element
        assert not re.search(r'(src|href|action)="(https?:)?//', page.text)


@async_test
async def test_a_theme_and_a_time_zone_are_kept_in_cookies_that_scripts_cannot_read():
    async with browsing() as person:
        kept = await person.send("/preferences", theme="dark", zone="local")
        assert kept.status_code == 303
        assert all("HttpOnly" in each for each in kept.headers.get_list("set-cookie"))
        page = await person.open("/runs")
        assert 'data-theme="dark" data-zone="local"' in page.text
        await person.send("/preferences", theme='"><script>')
        assert 'data-theme="dark"' in (await person.open("/runs")).text


@async_test
async def test_an_unknown_address_is_a_page_that_says_so():
    async with browsing() as person:
        page = await person.open("/nowhere")
        assert page.status_code == 404
        assert "nothing at" in text_of(page)


@async_test
async def test_the_files_of_the_pages_are_served_packed_and_for_a_year():
    async with served() as api, api.client(None) as client:
        page = (await client.get("/login?next=/runs")).status_code
        assert page == 200
        from stepwell.web.dashboard.assets import ASSETS, asset_url

        size = 0
        for name in ASSETS:
            reply = await client.get(asset_url("", name), headers={"Accept-Encoding": "gzip"})
            assert "immutable" in reply.headers["cache-control"]
            assert reply.headers["content-encoding"] == "gzip"
            size += int(reply.headers["content-length"])
            again = await client.get(f"/assets/{name}", headers={"If-None-Match": reply.headers["etag"]})
            assert again.status_code == 304
        assert size <= 40 * 1024
        assert (await client.get("/assets/../app.py")).status_code in (303, 404)
        assert (await client.get("/assets/nothing.js")).status_code == 404


@async_test
async def test_the_workspace_of_a_caller_for_all_of_the_store_stays_in_every_link():
    async with browsing("store") as person:
        await person.well.start(greet, workspace="rival", execution_id="of-rival")
        page = await person.open("/runs?workspace=rival")
        assert "of-rival" in text_of(page)
        assert 'href="/runs/of-rival?workspace=rival"' in page.text
        assert "of-rival" not in text_of(await person.open("/runs"))


@async_test
async def test_a_caller_for_one_workspace_chooses_no_other():
    async with browsing("acme") as person:
        page = await person.open("/runs?workspace=rival")
        assert page.status_code == 400
        assert "rival" not in page.text


@async_test
async def test_htmx_begins_only_when_its_extensions_are_there():
    async with browsing() as person:
        page = (await person.open("/runs")).text
    scripts = re.findall(r'<script src="/assets/([\w.-]+)\?[^>]*?( defer)?>', page)
    names = [name for name, _ in scripts]
    assert names.index("htmx.min.js") < names.index("hx-sse.min.js") < names.index("hx-csp.min.js")
    assert [name for name, defer in scripts if defer] == ["app.js"]
    assert "<script" not in page.partition("<body>")[2], "htmx would make it anew when it fetches the page"

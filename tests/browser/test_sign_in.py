"""Signing in and out, as people do it."""

from __future__ import annotations

from tests.browser.chromium import Chromium, in_browser
from tests.browser.site import Site


@in_browser
async def test_a_token_signs_in_by_keyboard_alone_and_the_button_out(chromium: Chromium, sites: dict[str, Site]):
    site = sites["filled"]
    async with chromium.visit(site.origin) as visit:
        await visit.go("/runs")
        assert visit.page.url.startswith(f"{site.origin}/login?next=")
        assert await visit.axe() == []
        await visit.page.keyboard.type("wrong")  # the field has the focus
        await visit.page.keyboard.press("Enter")
        await visit.page.get_by_role("alert").get_by_text("unknown, expired or revoked").wait_for()
        await visit.page.keyboard.type(site.tokens["operator"])
        await visit.page.keyboard.press("Enter")
        await visit.page.wait_for_url(f"{site.origin}/runs")
        [cookie] = [each for each in await visit.context.cookies() if each["name"] == "stepwell_session"]
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        await visit.page.get_by_role("button", name="Sign out").click()
        await visit.page.wait_for_url(f"{site.origin}/login")
        assert [each for each in await visit.context.cookies() if each["name"] == "stepwell_session"] == []

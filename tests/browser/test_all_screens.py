"""Every screen, filled, empty and without its store: nothing for axe-core to find, no message, no request to elsewhere.

The list is the dashboard's own table, so that a new screen is looked at without anybody thinking of it.
"""

from __future__ import annotations

import re

import pytest
from tests.browser.chromium import DESKTOP, PHONE, Chromium, in_browser
from tests.browser.site import SAMPLES, Site

from stepwell.web.dashboard.screen import Screen
from stepwell.web.dashboard.screen_table import SCREENS

PAGES = {each.name: each for each in SCREENS.routes if each.method == "GET" and each.is_page}
MARKUP = "img[src=x], svg[onload], [onerror], script:not([src])"
WITHOUT_STORE = {"show_api": 200, "show_bulk": 404}
"""Screens that need no store, each with its status without one; the others say 503."""
COLOURS = ("color-contrast", "link-in-text-block")


def parameters(screen: Screen) -> set[str]:
    return set(re.findall(r"{(\w+)}", screen.path))


def test_every_parameter_of_a_screen_has_a_sample():
    assert {name for screen in PAGES.values() for name in parameters(screen)} <= set(SAMPLES)


async def look(chromium: Chromium, site: Site, screen: Screen, status: int | None) -> None:
    """Open a screen, and look at it in light, in dark and on a phone."""
    async with chromium.visit(site.origin, site.sessions.get("store")) as visit:
        await visit.go(site.path(screen.path), status=status)
        assert await visit.page.evaluate(f"document.querySelectorAll({MARKUP!r}).length") == 0, "a user's text became markup"
        assert await visit.axe() == []
        await visit.page.emulate_media(color_scheme="dark")
        assert await visit.axe(COLOURS) == []
        await visit.page.set_viewport_size(PHONE)
        assert not await visit.has_overflow(), "the page scrolls sideways on a phone"
        assert await visit.axe() == []
        await visit.page.set_viewport_size(DESKTOP)


@pytest.mark.parametrize("name", PAGES)
@in_browser
async def test_a_screen_with_everything_has_no_fault(name: str, chromium: Chromium, sites: dict[str, Site]):
    await look(chromium, sites["filled"], PAGES[name], 200)


@pytest.mark.parametrize("name", [name for name, screen in PAGES.items() if not parameters(screen)])
@in_browser
async def test_a_screen_with_nothing_has_no_fault(name: str, chromium: Chromium, sites: dict[str, Site]):
    await look(chromium, sites["empty"], PAGES[name], 200)


@pytest.mark.parametrize("name", PAGES)
@in_browser
async def test_a_screen_whose_store_is_away_says_so_without_a_fault(name: str, chromium: Chromium, sites: dict[str, Site]):
    await look(chromium, sites["away"], PAGES[name], WITHOUT_STORE.get(name, 503))


@pytest.mark.parametrize("name", PAGES)
@in_browser
async def test_a_screen_is_whole_without_javascript(name: str, chromium: Chromium, sites: dict[str, Site]):
    site = sites["filled"]
    async with chromium.visit(site.origin, site.sessions["store"], java_script_enabled=False) as visit:
        await visit.go(site.path(PAGES[name].path))
        assert await visit.page.locator("main h1").count() == 1
        assert await visit.page.locator("main .js:visible").count() == 0

"""The colours of statuses: far enough apart for every kind of colour vision, and dark or light enough to be seen."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import combinations

import pytest

from stepwell.model.status import Status

CSS = (files("stepwell.web.dashboard.assets") / "app.css").read_text()
# Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB.
VISIONS = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
LEAST = {"light": 10.2, "dark": 12.1}


def tokens(theme: str) -> dict[str, str]:
    block = CSS.partition(":root[data-theme=dark]{")[2] if theme == "dark" else CSS.partition(":root{")[2]
    return dict(re.findall(r"--([\w-]+):(#[0-9a-f]{3,6})", block.partition("}")[0]))


def linear(color: str) -> tuple[float, ...]:
    digits = color.lstrip("#")
    digits = "".join(each * 2 for each in digits) if len(digits) == 3 else digits
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    return tuple(each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)


def contrast(one: str, other: str) -> float:
    low, high = sorted(sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear(each), strict=True)) for each in (one, other))
    return (high + 0.05) / (low + 0.05)


def seen(color: str, vision: str) -> tuple[float, ...]:
    rgb = linear(color)
    return tuple(min(max(sum(a * b for a, b in zip(row, rgb, strict=True)), 0), 1) for row in VISIONS[vision])


def oklab(rgb: tuple[float, ...]) -> tuple[float, ...]:
    r, g, b = rgb
    l, m, s = (  # noqa: E741 - the names of the cones
        (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3),
        (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3),
        (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3),
    )
    return (
        0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s,
        1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s,
        0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s,
    )


def distance(one: str, other: str, vision: str) -> float:
    pair = zip(oklab(seen(one, vision)), oklab(seen(other, vision)), strict=True)
    return 100 * sum((a - b) ** 2 for a, b in pair) ** 0.5


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_any_two_statuses_look_different_to_every_kind_of_eye(theme: str):
    colors = {status: tokens(theme)[status] for status in Status}
    found = {
        (one, other, vision): round(distance(colors[one], colors[other], vision), 1)
        for one, other in combinations(colors, 2)
        for vision in VISIONS
    }
    closest = min(found, key=found.__getitem__)
    assert found[closest] >= LEAST[theme], (closest, found[closest])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_statuses_and_words_stand_out_from_both_backgrounds(theme: str):
    named = tokens(theme)
    for ground in ("bg", "surface"):
        for status in Status:
            assert contrast(named[status], named[ground]) >= 3, (status, ground)
        assert contrast(named["control"], named[ground]) >= 3
        for word in ("text", "muted", "accent"):
            assert contrast(named[word], named[ground]) >= 4.5, (word, ground)
    assert contrast(named["on-accent"], named["accent"]) >= 4.5


def test_the_dark_tokens_are_the_same_by_preference_and_by_choice():
    by_preference = CSS.partition("prefers-color-scheme:dark")[2].partition("color-scheme:dark;")[2].partition("}")[0]
    by_choice = CSS.partition(":root[data-theme=dark]{")[2].partition("color-scheme:dark;")[2].partition("}")[0]
    assert by_preference == by_choice

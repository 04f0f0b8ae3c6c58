"""The architecture page names files that exist."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "architecture.md"
SOURCES = ROOT / "src" / "stepwell"
_PATH = re.compile(r"`([a-z_/]+(?:\.py|/))`")


def test_every_file_and_folder_on_the_page_exists():
    paths = _PATH.findall(PAGE.read_text(encoding="utf-8"))
    assert len(paths) > 30
    assert [path for path in paths if not (SOURCES / path).exists()] == []


def test_the_picture_names_every_layer():
    picture = (ROOT / "docs" / "pictures" / "layers.svg").read_text(encoding="utf-8")
    layers = {each.name for each in SOURCES.iterdir() if (each / "__init__.py").is_file()}
    assert [layer for layer in sorted(layers - {"testing"}) if f">{layer}" not in picture and f"  {layer}<" not in picture] == []

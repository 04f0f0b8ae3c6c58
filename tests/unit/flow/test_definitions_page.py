"""The reference page says what the code says."""

from __future__ import annotations

from tests.docs.pages import ROOT, cells

import stepwell.flow
from stepwell.flow.definition.builtin_steps import BUILTINS
from stepwell.flow.definition.document_reader import WORDS
from stepwell.flow.definition.node import Definition
from stepwell.flow.language.functions import FUNCTIONS
from stepwell.flow.language.parser import ROOTS

PAGE = ROOT / "docs" / "reference" / "definitions.md"
TEXT = PAGE.read_text(encoding="utf-8")


def table(heading: str) -> dict[str, str]:
    return {row[0].strip("`"): row[1] for row in cells(PAGE, heading)}


def test_functions_are_those_of_the_code() -> None:
    assert table("function") == {function.name: function.duty for function in FUNCTIONS.values()}


def test_roots_are_those_of_the_code() -> None:
    assert table("root") == ROOTS


def test_built_in_steps_are_those_of_the_code() -> None:
    assert table("step") == {builtin.name: builtin.duty for builtin in BUILTINS.values()}


def test_every_public_name_is_on_the_page() -> None:
    on_page = {name for name in stepwell.flow.__all__ if f"`{name}`" in TEXT or f"`{name}(" in TEXT}
    assert set(stepwell.flow.__all__) - on_page == set()


def test_every_field_is_on_the_page_by_the_name_it_has_in_a_document() -> None:
    for kind in (*WORDS.values(), Definition):
        for field in kind.__struct_encode_fields__:
            assert f"`{field}`" in TEXT or f"`{field}:" in TEXT, (kind.__name__, field)

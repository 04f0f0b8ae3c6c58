"""Names that a package fetches when they are first used."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from stepwell.lazy_import import fetching


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package with one module that has a name in it."""
    package, module = ModuleType("shop"), ModuleType("shop.till")
    module.price = [42]
    monkeypatch.setitem(sys.modules, "shop", package)
    monkeypatch.setitem(sys.modules, "shop.till", module)
    package.__getattr__ = fetching("shop", {"till": ("price",)}, ("till",))
    return package


def test_name_is_fetched_from_its_module_and_asked_for_once(package: ModuleType) -> None:
    assert "price" not in vars(package)
    assert package.price is sys.modules["shop.till"].price
    assert vars(package)["price"] is package.price


def test_module_that_is_offered_is_given_itself(package: ModuleType) -> None:
    assert package.till is sys.modules["shop.till"]


def test_name_that_no_module_has_is_an_attribute_error(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match="module 'shop' has no attribute 'nothing'"):
        _ = package.nothing

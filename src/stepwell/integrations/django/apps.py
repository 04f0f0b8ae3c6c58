"""The Django application: it imports the module `workflows` of each installed application."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from django.apps import AppConfig  # pyright: ignore[reportMissingTypeStubs]

__all__ = ["StepwellConfig"]


class StepwellConfig(AppConfig):
    """Finds the project's workflows."""

    name = "stepwell.integrations.django"
    label = "stepwell"
    verbose_name = "Stepwell"

    def ready(self) -> None:
        """Import the workflows of the project, so that every process knows them by name."""
        loading: Any = import_module("django.utils.module_loading")
        loading.autodiscover_modules("workflows")
        if find_spec("django.tasks") is not None:  # since Django 6
            import_module("stepwell.integrations.django.tasks")

"""Read the docstrings that stand after the fields of a class, which Python itself does not keep."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from itertools import pairwise

__all__ = ["field_docs"]


@cache
def field_docs(kind: type) -> dict[str, str]:
    """Return the docstring of each field of a class that has one, by the field's name; inherited fields included.

    Empty for a class whose source is not installed with it.
    """
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if not owner.__module__.startswith("stepwell"):
            continue
        try:
            source = inspect.getsource(owner)
        except OSError:
            continue
        [body] = [node.body for node in ast.parse(inspect.cleandoc("\n" + source)).body if isinstance(node, ast.ClassDef)]
        for field, text in pairwise(body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            ):
                found[field.target.id] = " ".join(text.value.value.split())
    return found

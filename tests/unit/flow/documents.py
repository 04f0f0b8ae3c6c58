"""A document with something of everything, and what is wrong with others."""

from __future__ import annotations

import pytest

from stepwell.errors import InvalidDefinition
from stepwell.flow import parse

CHECKOUT = """
name: checkout
version: 2
variables: {country: no}
do:
  - step: reserve
    with: {order: "{{ trigger.input }}"}
    compensate: release
  - parallel:
      charge: {step: charge, retry: {attempts: 5, first_seconds: 500ms}}
      pack: pack
    join: 1
  - choice:
      - when: steps.parallel.output.charge.total > 100
        do: {approval: Large order, timeout_seconds: 3d}
    otherwise: ship
  - loop:
      - poll
      - wait: 2h
    until: steps.poll.output.done
    max_iterations: 20
    collect: {last: 1}
"""


def faults(text: str, **options: object) -> list[str]:
    with pytest.raises(InvalidDefinition) as caught:
        parse(text, source="flow.yaml", **options)
    assert all(problem.code == "SW-105" for problem in caught.value.errors)
    return [f"{problem.where.removeprefix('flow.yaml:')} {problem.message}" for problem in caught.value.errors]

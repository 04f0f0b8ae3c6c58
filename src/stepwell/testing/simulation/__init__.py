"""A simulator: many runs, several workers, a virtual clock and faults, all from a seed; then the promises are checked.

``python -m stepwell.testing.simulation --seeds 200`` simulates many, ``--replay SEED`` one, with all that happened in it.
"""

from stepwell.testing.simulation.run import Outcome, simulate

__all__ = ["Outcome", "simulate"]

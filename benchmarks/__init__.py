"""Benchmarks: what Stepwell costs, each figure beside its raw limit measured in the same run. ``python -m benchmarks --help``."""

"""Benchmarks of Stepwell, each figure beside its raw limit from the same run. See ``python -m benchmarks --help``."""

"""Rivals: Stepwell beside products that do the same work, on the same servers, in turns. ``python -m benchmarks.rivals --help``."""

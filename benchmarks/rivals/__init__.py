"""Stepwell beside other products that do the same work on the same servers, alternately. See ``python -m benchmarks.rivals
--help``.
"""

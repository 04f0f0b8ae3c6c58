"""Temporal as an engine: the same workflows run on a Temporal server, with state and receipts in the Stepwell store.

Needs ``pip install stepwell[temporal]``. Nothing else of Stepwell imports this package, so that ``import stepwell`` stays light.
"""

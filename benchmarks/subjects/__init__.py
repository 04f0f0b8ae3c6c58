"""What is measured: one module each, with its measures by name in ``MEASURES``. A new module here is found by itself."""

"""The measures, one module per subject, each with its ``MEASURES`` by name. New modules are found automatically."""

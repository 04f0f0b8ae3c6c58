"""The faces (`awaited`, `blocking`), and the place where the parts of a store are put together."""

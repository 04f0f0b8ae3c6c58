"""The contenders: each module knows one product, and is imported only in the process that plays it."""

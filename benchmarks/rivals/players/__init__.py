"""The contenders. Each module uses one product, and is imported only in that contender's process."""

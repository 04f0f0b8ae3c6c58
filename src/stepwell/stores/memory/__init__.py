"""Memory store: implements the contract in dicts, for tests and scratch work; nothing survives the process."""

from stepwell.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]

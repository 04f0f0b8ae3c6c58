"""The memory store: the contract in dicts. For tests and scratch work; nothing survives the process."""

from stepwell.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]

"""Adapters for web frameworks. Each module needs its framework, which the program that uses it has installed."""

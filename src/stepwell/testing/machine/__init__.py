"""A plain model of a store, and the rules that drive both side by side."""

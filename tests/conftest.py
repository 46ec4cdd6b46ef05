"""Loads the fixtures of `support.plugin`, and those that we give to others."""

pytest_plugins = ["support.plugin", "epochfence.testing.plugin"]

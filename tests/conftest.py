"""Loads the fixtures of `support.plugin` for every test below this folder."""

pytest_plugins = ["support.plugin"]

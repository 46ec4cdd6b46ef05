"""The rules of fencing, and the thin Kafka shells that both sides need.

The rules are pure: no Kafka, clock, thread or randomness (an import contract in
pyproject.toml names their modules one by one). docs/rules.md states them.
"""

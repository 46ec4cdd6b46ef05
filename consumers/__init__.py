"""The consumer side: what reads through a fence."""

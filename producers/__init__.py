"""The producer side: what writes under a leadership."""

"""Replay and audit: what a log holds, judged again, and the evidence for it.

Records go through the fence of `epochfence.epochs` once more, from a topic, a record
file or Parquet. What is kept grows with partitions and epochs, never with records.
"""

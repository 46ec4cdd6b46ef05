"""What the tests need around them: real brokers, waiting, reading, compaction."""

"""One partition's log: append, roll, read, producer state, checkpoints."""

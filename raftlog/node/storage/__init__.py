"""The disk: the log on RocksDB, and the vote and identity in checksummed files beside it."""

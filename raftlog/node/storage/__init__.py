"""The data directory: the log in RocksDB, and the vote and identity in checksummed files."""

"""The disk of a controller: snapshots, retention of the log, and the free-space reserve."""

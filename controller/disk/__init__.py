"""The disk of a controller: snapshots, how long the log stays, and the free-space reserve."""

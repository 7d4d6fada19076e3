"""The shell of a broker: its requests, its links, its wiring."""

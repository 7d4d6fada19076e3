"""The metadata log at a broker: fetched, applied, read."""

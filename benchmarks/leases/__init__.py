"""Cost of leases and locks: kept alive, passed on, lost; here and at the peer."""

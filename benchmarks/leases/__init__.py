"""What leases and locks cost: kept alive, handed over, lost; here and at the peer."""

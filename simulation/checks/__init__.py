"""What must always hold in a simulated cluster, checked at every step."""

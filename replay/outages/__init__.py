"""Outages of brokers, partitions and controllers, with their beginnings, ends and causes."""

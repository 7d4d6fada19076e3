"""Outages of brokers, partitions and controllers: begin, end and cause."""

"""What was not there, from when to when, and why: brokers, partitions, controllers."""

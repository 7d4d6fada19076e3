"""What a delivered change costs: many watchers, few writes, here and at the peer."""

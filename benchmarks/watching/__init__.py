"""Cost of a delivered change: many watchers, few writes, here and at the peer."""

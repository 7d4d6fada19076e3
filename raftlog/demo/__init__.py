"""The demo: a whole cluster on this machine that fails and recovers as you watch."""

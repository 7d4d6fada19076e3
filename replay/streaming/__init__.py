"""Jobs that follow an export while it is written, in micro-batches, and raise each alert once."""

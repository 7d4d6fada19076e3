"""The demo: a whole cluster on this machine, broken and mended before one's eyes."""

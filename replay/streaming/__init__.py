"""Jobs that follow an export while it is written: micro-batch by micro-batch, each alert once."""

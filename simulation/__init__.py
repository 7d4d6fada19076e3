"""A whole cluster in one thread, on virtual time, from one seed."""

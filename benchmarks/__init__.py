"""Each claim about speed, with its peer and the machine's limits in the same run."""

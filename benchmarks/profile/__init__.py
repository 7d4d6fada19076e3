"""CPU of a write, stage by stage, in real processes under real load."""

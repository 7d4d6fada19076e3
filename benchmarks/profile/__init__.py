"""The CPU time of a write by stage, in real processes under real load."""

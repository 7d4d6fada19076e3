"""Where the CPU of a write goes, stage by stage, in real processes under real load."""

"""Real processes under real faults (cut links, power cuts, pauses, kills), judged by the
simulation's checkers. Each node has its own network namespace and ext4 file system. Needs Linux and
root.
"""

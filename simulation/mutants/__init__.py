"""Breakages of the shipped code, made at run time, each of which a simulated cluster must notice.

What the checkers are worth is what they catch: ``registry`` names a rule after the other, breaks it
by a small edit of one function's source, and says within how many seeds a run must fail because of
it. A mutant that survives is a hole in the simulator.
"""

"""Mutants: small edits of the shipped code at run time, each of which a simulated cluster must
detect within a number of seeds (``registry``). A surviving mutant is a hole in the simulator.
"""

"""Real processes under real faults: cut links, power cuts, pauses and kills, judged by the checkers
of the simulation.

The simulator runs the product's code on simulated time, network and disk. Here nothing of that is
simulated: each node is a process in a network namespace of its own, on an ext4 file system of its
own. Needs Linux and root.
"""

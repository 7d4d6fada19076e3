"""What a node remembers of its own life: elections, stalls, links, stops. Bounded, and never in
anybody's way.
"""

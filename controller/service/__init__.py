"""The shell of a controller: it receives requests, proposes decisions, and sends replies once they
are true.
"""

"""The shell of a broker's data plane: it carries out the decisions of ``broker.partition`` on the
store, the links and the timer.
"""

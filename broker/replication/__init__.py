"""The shell of a broker's data plane: carries out the decisions of ``broker.partition`` on the
store, the links and the timer.
"""

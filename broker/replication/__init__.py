"""The shell of a broker's data plane: carries out what ``broker.partition`` decides, on the store,
the links and the timer.
"""

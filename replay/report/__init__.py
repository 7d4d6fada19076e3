"""The report: one HTML file that opens offline, drawn from aggregates whose size does not grow with
the history.
"""

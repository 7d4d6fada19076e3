"""The report: one HTML file that opens offline, drawn from aggregates that Spark makes and that are
bounded whatever the history.
"""

"""Fixtures of the replay tests, and the tests that need Spark or a browser."""

from browser import find_browser
from kafka_log import real
from spark_runs import replay, spark

__all__ = ["collect_ignore", "real", "replay", "spark"]

# Without a browser there is nothing to say of how a page looks; what it is, test_report_page.py
# says anywhere.
collect_ignore = [] if find_browser() else ["test_report_browser.py"]

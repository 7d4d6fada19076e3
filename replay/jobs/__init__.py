"""The jobs.

Each can be given to spark-submit: ``spark-submit replay/jobs/audit.py EXPORT_DIR [options]``.
"""

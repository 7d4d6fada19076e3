"""The jobs. Each job has ``run``, which answers a request, and ``render``, which prints the
answer.
"""

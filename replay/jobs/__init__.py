"""The jobs. Each has ``run``, which answers a request, and ``render``, which prints the answer."""

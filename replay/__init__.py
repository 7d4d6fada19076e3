"""Jobs that answer questions about exported logs: the state at a point, changes and their
principals, an audit against the rules, outages, delays of visibility, and a report.

A request (``request``) names a job. ``app`` parses it from a command line; ``cli`` chooses the
engine: worker processes on this machine, or Spark, where ``submit`` runs. ``run`` opens the export
(``export``), checks its files and calls the job (``jobs``). Jobs build on

* ``kernels``: code over Arrow batches that carries state from one batch to the next, without Spark
  or files; the audit rules are there;
* ``engine``: task planning, the worker pool, file reading, and the fold;
* ``outages``, ``lag``: kernel passes for the availability and lao jobs; ``report`` shows both, the
  incidents and the audit on one page.

``spark`` is another pool, and exposes exports as Spark tables; ``streaming`` follows an export
while it is written. ``kafka`` converts Kafka's logs into exports. Requires the extra ``replay``;
only ``spark``, ``streaming`` and the sql and watch jobs need pyspark.
"""

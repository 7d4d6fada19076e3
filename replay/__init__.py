"""Answers about exported logs: the state at a point, the changes and their principals, an audit of
the rules, figures, and a report.

A request (``request``) names a job; ``app`` makes it of a command line, and ``cli`` chooses the
engine: worker processes of this machine, or Spark, where ``submit`` runs. ``run`` opens the export
(``export``), checks its files, and calls the job (``jobs``), which needs

* ``kernels``: code over Arrow batches that carries its state from one to the next, without Spark
  and without files; the rules of the audit are there;
* ``engine``: the plan of tasks, their pool, the reading of files, and the fold;
* ``outages``, ``lag``: passes of kernels for the jobs availability and lao; ``report`` draws both,
  the incidents and the audit on one page.

``spark`` is another pool, and exports as Spark's tables; ``streaming`` follows an export that is
written. ``kafka`` makes exports of Kafka's logs. Needs the extra ``replay``; only ``spark``,
``streaming`` and the jobs sql and watch need pyspark.
"""

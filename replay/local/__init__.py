"""The jobs without Spark: the kernels in worker processes of this machine, over the export's
Parquet files.
"""

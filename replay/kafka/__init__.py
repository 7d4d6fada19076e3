"""Importer of the metadata logs of Apache Kafka (KRaft): it makes exports of them for every job."""

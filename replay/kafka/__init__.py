"""Reads the metadata logs of Apache Kafka (KRaft), and makes exports of them for every job."""

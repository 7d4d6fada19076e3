"""The importer that converts metadata logs of Apache Kafka (KRaft) into exports for every job."""

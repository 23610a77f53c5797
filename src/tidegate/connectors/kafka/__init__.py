"""Apache Kafka: source, sink, and a broker for development. Requires ``pip install 'tidegate[kafka]'``."""

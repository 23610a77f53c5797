"""Apache Kafka: source, sink, and a broker for development. Needs ``pip install 'tidegate[kafka]'``."""

"""The bytes: batches and records in Kafka's stored format, and the codecs they are packed with."""

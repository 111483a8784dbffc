"""The Spark floor: a session, and the engine whose jobs clean logs on it.

Importing this package loads no Spark; only `session.spark_session` does, and it names the extra to
install where Spark or Java is missing. Logs as tables are a floor higher, in `stratalog.pipeline`.
"""

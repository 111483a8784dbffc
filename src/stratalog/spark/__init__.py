"""The Spark floor: a session, and the jobs that clean, read and snapshot logs on it.

Importing this package loads no Spark; only `session.spark_session` does, and it names the extra to
install where Spark or Java is missing.
"""

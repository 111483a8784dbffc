"""Stratalog: a partitioned commit log in Kafka's format, and what happens to it after writing.

Importing the package is cheap: it loads nothing but this file. Each floor is imported by who
needs it (see docs/ARCHITECTURE.md).
"""

__version__ = "0.1.0"

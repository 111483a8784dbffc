"""The slow, obvious twin of the storage core: pure Python, and not a line shared with it.

It is written from Kafka's documented behaviour and from the golden directories alone, so that a
mistake in `stratalog` and the same mistake here is unlikely. Nothing here imports `stratalog`.
"""

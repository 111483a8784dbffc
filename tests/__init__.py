"""Tests of Stratalog; folders mirror src/stratalog. `tests.naive` is the slow, obvious twin."""

"""Tests of the log floor."""

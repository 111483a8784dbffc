"""Tests of the operations that every face shares."""

"""Tests of the segment floor."""

"""The ground floor: errors, limits, clock, file system. Imports nothing of Stratalog."""

"""One segment on disk: file names, log file, three indexes; and the set of a log's segments."""

"""Settings: Kafka's property names, their types, defaults and rules, and what a run was given.

    kinds.py        types of values: how text becomes a value, which values a rule refuses
    row.py          what a row of the table is made of
    table.py        THE table, of the rooms rows_log.py, rows_cleaning.py, rows_accepted.py
    levels.py       who gives what: which names count where, values with their sources
    together.py     what is valid alone and refused together
    settings.py     levels laid over one another -> Settings: checked values, each with its source
    book.py         the settings of all topics of a process, and changes at run time
    properties.py   Java's .properties format
    book_file.py    a file of what is said of topics and namespaces
    docs.py         the table as text for people

Nothing below this floor reads a `Settings`; the floors above turn it into plain values.
"""

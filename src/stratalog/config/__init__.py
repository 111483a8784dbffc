"""Settings: Kafka's property names, their types, defaults and rules, and what a run was given.

    kinds.py     types of values: how text becomes a value, which values a rule refuses
    row.py       what a row of the table is made of
    table.py     THE table: every setting that something here obeys
    settings.py  resolve({name: text}) -> Settings: checked values, each with its source

Nothing below this floor reads a `Settings`; the floors above turn it into plain values.
"""

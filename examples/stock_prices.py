"""Stock prices: the key is the symbol, the value the price, and the last price is what counts.

From the first line to a snapshot: a topic is made, a day of trading is appended, compacted into a
ledger, and read by its three views; a share is taken off the list; the last prices are written to a
Parquet file. Run it with `python examples/stock_prices.py [DIRECTORY]`; without a directory it
works in one of its own, which it removes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import stratalog

SYMBOLS = ("ACME", "BETA", "COLA", "DELL", "ECHO", "FUJI")
TRADES = 5_000
Trade = tuple[str, str]


def trades(count: int, random: Random) -> Iterator[Trade]:
    """A symbol and its new price, again and again."""
    prices = dict.fromkeys(SYMBOLS, 100.0)
    for _ in range(count):
        symbol = random.choice(SYMBOLS)
        prices[symbol] = max(1.0, prices[symbol] * random.uniform(0.99, 1.01))
        yield symbol, f"{prices[symbol]:.2f}"


def last_prices(topic: stratalog.Topic) -> dict[str, float]:
    """What a share costs now: one record each, none that was deleted."""
    with topic.read("latest") as records:
        return {r.key.decode(): float(r.value) for r in records if r.key and r.value}


def run(directory: Path) -> dict[str, float]:
    """The whole story; the last prices."""
    with stratalog.open(directory / "data") as store:
        stocks = store.create_topic(
            "stocks",
            partitions=4,
            config={
                "cleanup.policy": "delete",  # the raw log may go with time
                "compaction.mode": "ledger",  # the latest price of each share stays
                "compaction.ledgers.retained": 2,
            },
        )
        stocks.append_many(trades(TRADES, Random(1)))
        show("appended", stocks)

        stocks.compact()
        show("compacted", stocks)

        stocks.append("ACME", "123.45")
        stocks.append("FUJI", None)  # taken off the list: its key is deleted
        show("two more", stocks)

        consumer = store.consumer("stocks", group="board", read_compacted=True)
        with consumer:
            consumer.seek_to_beginning()
            seen = 0
            while records := consumer.poll(100):
                seen += len(records)
            consumer.commit()
        print(f"the board has read {seen} records, deletions among them")

        stocks.compact()
        with stocks.read("latest", as_of="ledger:1", partitions=[0, 1, 2, 3]) as before:
            print(f"yesterday there were {len(list(before))} shares")
        prices = last_prices(stocks)
        write_parquet(stocks, directory / "last_prices.parquet")
        return prices


def show(what: str, topic: stratalog.Topic) -> None:
    """How many records each view has."""
    raw, compacted, latest = (
        sum(1 for _ in topic.read("raw")),
        sum(1 for _ in topic.read("compacted")),
        sum(1 for _ in topic.read("latest")),
    )
    print(f"{what}: {raw:,} records in the log, {compacted:,} compacted, {latest} shares")


def write_parquet(topic: stratalog.Topic, path: Path) -> None:
    """A snapshot for others; no row of it was ever a Python object."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with topic.read_arrow("latest", columns=["key", "value", "timestamp", "offset"]) as batches:
        table = pa.Table.from_batches(batches)
    pq.write_table(table, path)
    print(f"{path.name}: {table.num_rows} rows")


def main() -> None:
    """Run it in a directory that was named, or in one that goes again."""
    if len(sys.argv) > 1:
        prices = run(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            prices = run(Path(directory))
    for symbol, price in sorted(prices.items()):
        print(f"{symbol} {price:8.2f}")


if __name__ == "__main__":
    main()

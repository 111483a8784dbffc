"""The steps of the cleaner's state machine that append: what they append, the model knows."""

from __future__ import annotations

from random import Random
from typing import Any

from stratalog.record.builder import NewRecord, build_batch
from stratalog.record.codec import Codec
from stratalog.record.control import ControlType
from stratalog.segment.names import TopicPartition
from tests.clean.machine import HEADER, KEYS, SKEWS
from tests.clean.machine_judge import Judge
from tests.clean.machine_model import DATA, MARKER, NOBODY, TXN, Producer, Sent
from tests.naive.records import Record


class Appends(Judge):
    """Numbers choose: which partition, and by a seed which records."""

    def _key(self, number: int) -> TopicPartition:
        return self.keys[number % len(self.keys)]

    def _records(self, key: TopicPartition, seed: int) -> list[NewRecord]:
        random = Random(seed)
        is_keyed = "compact" in self.configs[key].policy
        made = []
        for _ in range(random.randint(1, 3)):
            name = random.choice(KEYS) if is_keyed or random.random() < 0.7 else None
            value = None if random.random() < 0.25 else b"%d" % random.randrange(100)
            at_ms = self.clock.now_ms() + random.choice(SKEWS)
            headers: tuple[tuple[bytes, bytes], ...] = ()
            if random.random() < 0.3:
                headers = ((HEADER.encode(), b"%d" % random.randrange(20)),)
            made.append(NewRecord(name, value, at_ms, headers))
        return made

    def _send(
        self, key: TopicPartition, made: list[NewRecord], codec: Codec, **producer: Any
    ) -> None:
        result = self.log(key).append(build_batch(made, codec=codec, **producer))
        self.require(not result.is_duplicate, "new data was taken for a duplicate")
        records = tuple(
            Record(result.first_offset + place, one.timestamp or 0, one.key, one.value, one.headers)
            for place, one in enumerate(made)
        )
        self.models[key].append(
            Sent(
                result.first_offset,
                result.last_offset,
                TXN if producer.get("transactional") else DATA,
                records,
                producer.get("producer_id", NOBODY),
                producer.get("producer_epoch", -1),
                producer.get("base_sequence", -1),
            )
        )

    def _codec(self, seed: int) -> Codec:
        return list(Codec)[seed % 5] if seed % 11 == 0 else Codec.NONE

    def _append(self, number: int, seed: int) -> None:
        key = self._key(number)
        self._send(key, self._records(key, seed), self._codec(seed))

    def _fill(self, number: int, seed: int) -> None:
        """A segment's worth of batches."""
        for place in range(4):
            self._append(number, seed + place)
        self.log(self._key(number)).roll()

    def _produce(self, number: int, producer_id: int, seed: int, bumps: int = 0) -> None:
        """Idempotent, by producers 0 to 2; in a transaction, by those from 3 on."""
        key = self._key(number)
        model = self.models[key]
        producer = model.producers.get(producer_id)
        is_known = producer is None or model.must_know(producer_id)
        if producer_id in model.open:
            if not is_known:
                return
        elif producer is not None and (bumps or not is_known):
            # What a client does that is told that its sequence is unknown, as in Kafka.
            producer = Producer(producer.epoch + 1)
        producer = producer or Producer(0)
        self._send(
            key,
            self._records(key, seed),
            self._codec(seed),
            producer_id=producer_id,
            producer_epoch=producer.epoch,
            base_sequence=producer.next_sequence,
            transactional=producer_id >= 3,
        )

    def _end(self, number: int, producer_id: int, aborts: int) -> None:
        key = self._key(number)
        model = self.models[key]
        if producer_id not in model.open:
            return
        epoch = model.producers[producer_id].epoch
        result = self.log(key).append_marker(
            ControlType.ABORT if aborts else ControlType.COMMIT,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        first = result.first_offset
        model.append(
            Sent(
                first,
                first,
                MARKER,
                (),
                producer_id,
                epoch,
                is_abort=bool(aborts),
                at_ms=self.clock.now_ms(),
            )
        )

    def _repeat(self, number: int, producer_id: int) -> None:
        """What was sent last is sent again, and recognised (CMP-13)."""
        key = self._key(number)
        model = self.models[key]
        if not model.must_know(producer_id):
            return
        last = model.producers[producer_id].last
        assert last is not None
        made = [NewRecord(r.key, r.value, r.timestamp, r.headers) for r in last.records]
        if any(record.key is None for record in made):
            return  # refused as what it is by now
        result = self.log(key).append(
            build_batch(
                made,
                producer_id=producer_id,
                producer_epoch=last.epoch,
                base_sequence=last.sequence,
                transactional=last.kind == TXN,
            )
        )
        self.require(result.is_duplicate, f"producer {producer_id}'s duplicate was appended")
        self.require(result.first_offset == last.first, "a duplicate's offset")

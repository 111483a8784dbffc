"""What is valid alone and refused together, in Kafka's words where it is Kafka's rule.

All rules are pure and look at one `Settings`; `check_change` also at the one before it.

Sources: Kafka's LogConfig.validateValues and its rules of remote storage, KafkaConfig (dedupe
buffer), LogCleaner.validateReconfiguration, DynamicThreadPool; our own rules are marked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.base.errors import InvalidConfigError
from stratalog.config.kinds import invalid

if TYPE_CHECKING:
    from stratalog.config.settings import Settings

_BUFFER = "log.cleaner.dedupe.buffer.size"
_RECOVERY = "num.recovery.threads.per.data.dir"
_MIB = 1 << 20


def check_together(settings: Settings) -> None:
    """The rules of a topic. Raises `InvalidConfigError` with the rule that is broken."""
    _check_lags(settings)
    _check_remote(settings)
    _check_strategy(settings)
    _check_map(settings)
    _check_retries(settings)


def check_broker(settings: Settings) -> None:
    """What a broker's properties must keep besides. Raises `InvalidConfigError`."""
    check_together(settings)
    threads = settings.integer("log.cleaner.threads")
    if settings.flag("log.cleaner.enable") and settings.integer(_BUFFER) // threads <= _MIB:
        raise InvalidConfigError(f"{_BUFFER} must be at least 1MB per cleaner thread.")


def check_change(before: Settings, after: Settings) -> None:
    """How far thread counts may go at once at run time. Raises `InvalidConfigError`."""
    old, new = (settings.integer("log.cleaner.threads") for settings in (before, after))
    if new < old // 2:
        raise InvalidConfigError(
            f"Log cleaner threads cannot be reduced to less than half the current value {old}"
        )
    if new > old * 2:
        raise InvalidConfigError(
            f"Log cleaner threads cannot be increased to more than double the current value {old}"
        )
    old, new = (settings.integer(_RECOVERY) for settings in (before, after))
    failed = f"Dynamic thread count update validation failed for {_RECOVERY}={new}"
    if new < old // 2:
        raise InvalidConfigError(f"{failed}, value should be at least half the current value {old}")
    if new > old * 2:
        raise InvalidConfigError(
            f"{failed}, value should not be greater than double the current value {old}"
        )


def _check_lags(settings: Settings) -> None:
    lowest, highest = (
        settings.integer(name) for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    if lowest > highest:
        raise InvalidConfigError(
            f"conflict topic config setting min.compaction.lag.ms ({lowest}) > "
            f"max.compaction.lag.ms ({highest})"
        )


def _check_remote(settings: Settings) -> None:
    if not settings.flag("remote.storage.enable"):
        return
    if settings.is_compacted:
        raise InvalidConfigError(
            "Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy "
            "being an empty list."
        )
    for unit in ("bytes", "ms"):
        _check_local(settings, f"local.retention.{unit}", f"retention.{unit}")


def _check_local(settings: Settings, local_name: str, name: str) -> None:
    local, whole = settings.integer(local_name), settings.integer(name)
    if whole == -1 or local == -2:
        return
    if local == -1:
        raise invalid(local_name, local, f"Value must not be -1 as {name} value is set as {whole}.")
    if local > whole:
        reason = f"Value must not be more than {name} property value: {whole}"
        raise invalid(local_name, local, reason)


def _check_strategy(settings: Settings) -> None:  # ours (CMP-17)
    is_header = settings.text("compaction.strategy") == "header"
    if is_header and not settings.text("compaction.strategy.header"):
        reason = "Needs compaction.strategy.header, the name of the header"
        raise invalid("compaction.strategy", "header", reason)


def _check_map(settings: Settings) -> None:  # ours: a round that maps no key never ends
    if settings.max_keys is not None and settings.max_keys < 1:
        raise invalid(
            settings.sources[_BUFFER],
            settings.integer(_BUFFER),
            "Too small for one key, at 24 bytes a key times log.cleaner.io.buffer.load.factor",
        )


def _check_retries(settings: Settings) -> None:  # ours (CLN-7)
    first, longest = (
        settings.integer(name)
        for name in ("cleaner.retry.backoff.ms", "cleaner.retry.backoff.max.ms")
    )
    if first > longest:
        raise InvalidConfigError(
            f"cleaner.retry.backoff.ms ({first}) is more than "
            f"cleaner.retry.backoff.max.ms ({longest})"
        )

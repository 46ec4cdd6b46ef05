"""How this package's own Kafka clients are configured and made."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from secrets import token_hex
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from epochfence.epochs.errors import MisconfiguredError

Config = Mapping[str, Any]

#: What librdkafka logs about connections; errors of ours repeat what matters.
_client_log = logging.getLogger("epochfence.client")
_client_log.addHandler(logging.NullHandler())

# One record a batch and one batch in flight: librdkafka may form batches anew
# after a leader change, and the broker would then store a record twice (librdkafka
# issue 4953). One by one, a retry is byte-equal and recognised.
_APPENDING = {
    "acks": "all",
    "enable.idempotence": True,
    "max.in.flight": 1,
    "batch.num.messages": 1,
    "linger.ms": 0,
}

_READING = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    # Never start elsewhere in silence.
    "auto.offset.reset": "error",
    # The default of 1,000 ms stalls a fast reader; a short one costs no CPU.
    "fetch.queue.backoff.ms": 10,
    "allow.auto.create.topics": False,
}

# Only where the user did not say: the client's defaults let a frozen broker, whose
# connections stay open, hold up everything for a minute.
_DEFAULTS = {
    "socket.timeout.ms": 10_000,
    "socket.connection.setup.timeout.ms": 5_000,
}

_ALIASES = {
    "request.required.acks": "acks",
    "max.in.flight.requests.per.connection": "max.in.flight",
}


class LastError:
    """Remembers what a client last complained about, for an error's message."""

    def __init__(self) -> None:
        self.text = ""

    def __call__(self, error: KafkaError) -> None:
        self.text = error.str()

    def or_else(self, text: str) -> str:
        """The last complaint, `text` where there is none."""
        return f"{text} ({self.text})" if self.text else text


def _merged(config: Config, ours: dict[str, Any]) -> dict[str, Any]:
    """`config` and `ours`; what contradicts is refused, never overridden."""
    merged = {**_DEFAULTS, **config}
    if not any(
        merged.get(name) is not None
        for name in ("bootstrap.servers", "metadata.broker.list")
    ):
        raise MisconfiguredError(
            "bootstrap.servers", None, "no broker is named",
            "Give {'bootstrap.servers': 'host:port'} (-b on the command line).",
        )  # fmt: skip
    for name in ("group.id", "transactional.id"):
        if name in config:
            raise MisconfiguredError(
                name, config[name], "the ledger's own clients do not take it",
                "Give connection settings only.",
            )  # fmt: skip
    for name, value in config.items():
        wanted = ours.get(_ALIASES.get(name, name))
        if wanted is None:
            continue
        if _spelt(value) not in _spellings(wanted):
            raise MisconfiguredError(
                name, value, f"the guarantee needs {wanted!r}",
                "Leave the setting out.",
            )  # fmt: skip
        del merged[name]
    merged.update(ours)
    return merged


def _spelt(value: object) -> str:
    return str(value).strip().lower()


def _spellings(value: object) -> set[str]:
    return {_spelt(value), "-1"} if value == "all" else {_spelt(value)}


def _refused(error: KafkaException, config: dict[str, Any]) -> MisconfiguredError:
    reason = error.args[0].str() if error.args else str(error)
    named = [name for name in config if f'"{name}"' in reason]
    setting = named[0] if named else "config"
    return MisconfiguredError(
        setting,
        "…" if "password" in setting or not named else config[setting],
        f"the Kafka client refuses it: {reason}",
        "See librdkafka's CONFIGURATION.md for its settings.",
    )


def appending_producer(config: Config, last_error: LastError) -> Producer:
    """A producer for claims, syncs and rows: idempotent, one record a batch.

    Raises:
        MisconfiguredError: A setting contradicts that, or is unknown.
    """
    merged = _merged(config, {**_APPENDING, "error_cb": last_error})
    try:
        return Producer(merged, logger=_client_log)
    except KafkaException as error:
        raise _refused(error, merged) from error


def reading_consumer(
    config: Config, last_error: LastError, *, isolation: str
) -> Consumer:
    """A consumer for `assign`, outside of any group, that reports partition ends.

    Raises:
        MisconfiguredError: A setting contradicts that, or is unknown.
    """
    ours = {**_READING, "isolation.level": isolation, "error_cb": last_error}
    merged = _merged(config, ours)
    # The client insists on a group; nothing is ever committed to it.
    merged["group.id"] = f"epochfence-reader-{token_hex(8)}"
    try:
        return Consumer(merged, logger=_client_log)
    except KafkaException as error:
        raise _refused(error, merged) from error


def admin_client(config: Config, last_error: LastError) -> AdminClient:
    """An admin client.

    Raises:
        MisconfiguredError: A setting is unknown.
    """
    merged = _merged(config, {"error_cb": last_error})
    try:
        return AdminClient(merged, logger=_client_log)
    except KafkaException as error:
        raise _refused(error, merged) from error

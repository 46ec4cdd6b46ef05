"""Elections: who may try to claim an epoch. They are hints; the ledger decides.

And where its number comes from, if another system counts: `KafkaLeaderEpoch`,
`PostgresSequence`, `EtcdElection.revision`, `ZookeeperElection.zxid`.
"""

from typing import TYPE_CHECKING

from epochfence.elections.election import Election
from epochfence.elections.kafka_group import KafkaElection
from epochfence.elections.kafka_leader_epoch import KafkaLeaderEpoch

if TYPE_CHECKING:
    from epochfence.elections.etcd import EtcdElection as EtcdElection
    from epochfence.elections.kubernetes import KubernetesElection as KubernetesElection
    from epochfence.elections.postgres import PostgresElection as PostgresElection
    from epochfence.elections.postgres_sequence import (
        PostgresSequence as PostgresSequence,
    )
    from epochfence.elections.zookeeper import ZookeeperElection as ZookeeperElection
else:
    from importlib import import_module

    #: By name: the module, the extra, and what it needs.
    _WITH_EXTRA = {
        "EtcdElection": ("etcd", "etcd", "etcd3gw"),
        "KubernetesElection": ("kubernetes", "kubernetes", "kubernetes"),
        "PostgresElection": ("postgres", "postgres", "psycopg"),
        "PostgresSequence": ("postgres_sequence", "postgres", "psycopg"),
        "ZookeeperElection": ("zookeeper", "zookeeper", "kazoo"),
    }

    def __getattr__(name: str) -> object:
        """Load what needs an extra when it is asked for."""
        if name not in _WITH_EXTRA:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module_name, extra, needed = _WITH_EXTRA[name]
        try:
            module = import_module(f"{__name__}.{module_name}")
        except ImportError as error:
            raise ImportError(
                f"{name} needs {needed} ({error}). "
                f"Install it: pip install 'epochfence[{extra}]'"
            ) from error
        return getattr(module, name)


# Those with an extra are not among them: `import *` goes without.
__all__ = ["Election", "KafkaElection", "KafkaLeaderEpoch"]

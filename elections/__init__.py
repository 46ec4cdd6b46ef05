"""Elections: who may try to claim an epoch. They are hints; the ledger decides."""

from typing import TYPE_CHECKING

from epochfence.elections.election import Election
from epochfence.elections.kafka_group import KafkaElection

if TYPE_CHECKING:
    from epochfence.elections.postgres import PostgresElection as PostgresElection
else:

    def __getattr__(name: str) -> object:
        """Load what needs an extra when it is asked for."""
        if name != "PostgresElection":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            from epochfence.elections.postgres import PostgresElection
        except ImportError as error:
            raise ImportError(
                f"PostgresElection needs psycopg ({error}). "
                "Install it: pip install 'epochfence[postgres]'"
            ) from error
        return PostgresElection


# PostgresElection is not among them: `import *` goes without its extra.
__all__ = ["Election", "KafkaElection"]

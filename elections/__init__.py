"""Elections: who may try to claim an epoch. They are hints; the ledger decides."""

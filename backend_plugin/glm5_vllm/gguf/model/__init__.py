"""Which model a file holds: hyperparameters, release and indexer layers."""

"""What sinks into tables of a database have in common: rows, names of transactions, writer, committer."""

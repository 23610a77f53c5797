"""Sinks into tables of a database: rows, names of transactions, writer, committer, and the shared half of each database."""

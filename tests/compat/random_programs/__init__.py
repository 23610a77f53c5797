"""Small random programs over random data, with a model of what each gives: see ``generator.py``."""

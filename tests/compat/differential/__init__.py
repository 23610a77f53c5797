"""Programs written once against PyFlink's API, to run on PyFlink and on Tidegate; see tests/compat/test_differential.py."""

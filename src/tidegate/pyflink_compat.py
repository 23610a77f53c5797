"""For PyFlink programs that are started by ``python job.py``: call ``install()`` before the first import of ``pyflink``."""

from tidegate.base.imports import install, is_installed

__all__ = ["install", "is_installed"]

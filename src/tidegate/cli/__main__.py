"""``python -m tidegate.cli``: the command line without its script on the PATH."""

from tidegate.cli.main import main

main()

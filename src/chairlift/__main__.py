"""``python -m chairlift``. Knows nothing but where the command line is."""

from chairlift.cli.main import main

main()

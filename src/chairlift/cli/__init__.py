"""The command line: parse, call, print. Knows nothing that the packages below do not offer to others too."""

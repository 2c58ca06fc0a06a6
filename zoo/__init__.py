"""Real architectures through every verb, each held to one contract; see README.md beside this."""

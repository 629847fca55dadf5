"""How each subcommand is spelled: its options, its help, and what it runs. Imports none of that."""

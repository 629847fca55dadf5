"""Options and help of the subcommands. Imports a subcommand's module only when it runs."""

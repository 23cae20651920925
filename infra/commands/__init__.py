"""Commands of the command line. `infra.cli` imports only the module of the requested command."""

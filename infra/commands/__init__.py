"""The commands, one module each. `infra.cli` imports a module only when it is asked for."""
